-- Moves a leased row on to its next occurrence. ARGV: key, fence, the rule it was computed by (cron, timezone, delay_ms),
-- the occurrence, and when that is due. Returns {'done'}, or why not; {'changed', row} when the rule is another one now.
local function advance()
  local row = row_of(ARGV[1])
  local refused = refusal(row, ARGV[2])
  if refused then
    return refused
  end
  local rule = call('HMGET', row, 'cron', 'timezone', 'delay_ms')
  if rule[1] ~= ARGV[3] or rule[2] ~= ARGV[4] or rule[3] ~= ARGV[5] then
    return {'changed', call('HGETALL', row)}
  end
  insist(row)
  call('HDEL', row, 'last_error')
  call('HSET', row, 'next_time', ARGV[6], 'attempts', '0', 'crashes', '0')
  settle(ARGV[1], tonumber(ARGV[7]))
  return {'done'}
end
