#!/bin/sh
# Counts words: text in, a line for each word out, and a last line so that a result that was cut off is known.
tr -s ' ' '\n' | sort | uniq -c && echo end
