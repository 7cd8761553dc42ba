#!/bin/sh
# In the foreground domain: its service.
exec ./front
