-- Returns entries of all schedules as they were entered, each a list: when that was (microseconds), its place there, the key
-- and the entry ('' when it is gone). ARGV: 1 for those with trouble (else 0), the first and the last time, the most entries.
local rows = {}
local found = call('ZRANGEBYSCORE', T .. 'settled:' .. ARGV[1], ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[4]))
for at = 1, #found, 2 do
  local occurrence, fence, key = found[at]:match('^(%-?%d+):(%d+):(.*)$')
  local entry = key and entered(key, occurrence, fence)
  rows[#rows + 1] = {found[at + 1], found[at], key or '', entry or ''}
end
return rows
