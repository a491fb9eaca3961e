-- Returns a row as fields and values, nothing when there is none. ARGV: key.
return call('HGETALL', row_of(ARGV[1]))
