#!/bin/sh
# cron: 0 7 * * mon-fri Europe/Paris
echo "hello from $0"
