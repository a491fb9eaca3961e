-- Makes a leased row due later. ARGV: key, lease, the wait in milliseconds, 1 when this attempt does not count (else 0),
-- and the error if any. Returns {'done'}, or why not.
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
if ARGV[5] then
  call('HSET', row, 'last_error', ARGV[5])
end
settle(ARGV[1], now + tonumber(ARGV[3]))
return {'done'}
