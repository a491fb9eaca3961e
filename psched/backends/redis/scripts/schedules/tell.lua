-- Lets one tell of an overdue occurrence. ARGV: key, occurrence, for how many milliseconds. Returns 1; 0 when it is not
-- overdue, was told of, or another one is telling.
local row = row_of(ARGV[1])
local is = call('HMGET', row, 'next_time', 'alert_at', 'alerted', 'ringing_until', 'regular_time')
if (is[5] or is[1]) ~= ARGV[2] or is[3] == ARGV[2] or (tonumber(is[2]) or math.huge) > now or (tonumber(is[4]) or 0) > now then
  return 0
end
call('HSET', row, 'ringing_until', whole(now + tonumber(ARGV[3])))
return 1
