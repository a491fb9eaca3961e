#!/bin/sh
# cron: */10 * * * *
find "${TMPDIR:-/tmp}" -maxdepth 1 -name "*.stale" -mmin +60 -delete
