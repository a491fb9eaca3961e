-- Ends a leased row for good. ARGV: key, lease, status, retention in milliseconds ('' for ever), how many attempts were
-- made, what `keep_failure` takes of a failure, and the error if any. Returns {'done'}, or why not.
local key = ARGV[1]
local refused = refusal(row_of(key), ARGV[2])
if refused then
  return refused
end
insist(row_of(key))
keep_failure(T, ARGV[6], ARGV[7])
withdraw(key)
retire(key, ARGV[3], ARGV[4], ending(row_of(key), ARGV[2], ARGV[3]))
call('HSET', row_of(key), 'attempts', ARGV[5])
if ARGV[8] then
  call('HSET', row_of(key), 'last_error', ARGV[8])
end
return {'done'}
