#!/bin/sh
# In the volunteer's domain: counts the words of the text that a client sends.
exec nc -ll -p 7000 -e ./count.sh
