-- Makes a leased row due later. ARGV: key, fence, the wait in milliseconds, and the error if any. Returns {'done'}, or
-- why not.
local row = row_of(ARGV[1])
local refused = refusal(row, ARGV[2])
if refused then
  return refused
end
call('HSET', row, 'crashes', '0')
if ARGV[4] then
  call('HSET', row, 'last_error', ARGV[4])
end
settle(ARGV[1], now + tonumber(ARGV[3]))
return {'done'}
