-- Ends a leased row for good. ARGV: key, fence, status, retention in milliseconds ('' for ever), and the error if any.
-- Returns {'done'}, or why not.
local key = ARGV[1]
local refused = refusal(row_of(key), ARGV[2])
if refused then
  return refused
end
withdraw(key)
retire(key, ARGV[3], ARGV[4])
if ARGV[5] then
  call('HSET', row_of(key), 'last_error', ARGV[5])
end
return {'done'}
