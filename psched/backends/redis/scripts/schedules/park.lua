-- Gives a paused row back, the attempt not counted. ARGV: key, lease, when it is due; now when it is not paused any more.
-- Returns {'done'}, or why not.
local row = row_of(ARGV[1])
local refused = refusal(row, ARGV[2])
if refused then
  return refused
end
insist(row)
grow(row, 'attempts', -1)
local pause = call('HMGET', row, 'paused_from', 'paused_until')
settle(ARGV[1], pause[1] and not pause[2] and tonumber(ARGV[3]) or now,
  ending(row, ARGV[2], 'released'))
return {'done'}
