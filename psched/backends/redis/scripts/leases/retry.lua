-- Makes a leased row due later. ARGV: key, lease, the wait in milliseconds, 1 when this attempt does not count (else 0),
-- the version because of which it waits (or ''), and the error if any. Returns {'done'}, or why not.
local row = row_of(ARGV[1])
local refused = refusal(row, ARGV[2])
if refused then
  return refused
end
insist(row)
call('HSET', row, 'crashes', '0')
if ARGV[4] == '1' then
  grow(row, 'attempts', -1)
end
if ARGV[6] then
  call('HSET', row, 'last_error', ARGV[6])
end
settle(ARGV[1], now + wait_of(row, ARGV[3], ARGV[5]), ending(row, ARGV[2], 'retried'))
return {'done'}
