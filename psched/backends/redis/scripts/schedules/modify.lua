-- Writes fields of a row that is as it was seen. ARGV: key, then as seen status, next_time, cron, timezone, delay_ms and
-- due ('' for any), then fields and values. Returns 1; 0 when it is not as it was seen.
local key = ARGV[1]
local row = row_of(key)
local is = call('HMGET', row, 'status', 'next_time', 'cron', 'timezone', 'delay_ms', 'due', 'type')
for place = 1, 6 do
  local seen = ARGV[place + 1]
  if is[place] ~= seen and not (place == 6 and seen == '' and is[6]) then
    return 0
  end
end
local type, due = is[7], is[6]
for place = 8, #ARGV, 2 do
  if ARGV[place] == 'due' then
    due = ARGV[place + 1]
  else
    call('HSET', row, ARGV[place], ARGV[place + 1])
  end
  if ARGV[place] == 'type' then
    call('ZREM', T .. 'due:' .. type, key)
    type = ARGV[place + 1]
  end
end
call('HSET', row, 'updated', whole(now))
move(key, type, tonumber(due), is[6])
return 1
