-- Enters that somebody was told of an occurrence. ARGV: key, occurrence.
local row = row_of(ARGV[1])
if (call('HGET', row, 'regular_time') or call('HGET', row, 'next_time')) == ARGV[2] then
  call('HDEL', row, 'ringing_until')
  call('HSET', row, 'alerted', ARGV[2])
  watch(ARGV[1])
end
