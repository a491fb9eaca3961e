-- Returns a row as fields and values, nothing when there is none, or what is there is no hash. ARGV: key.
local found = redis.pcall('HGETALL', row_of(ARGV[1]))
return found.err and {} or found
