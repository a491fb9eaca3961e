-- Returns rows by their time in a set, the oldest first, each a list of the key, and the row without its data. ARGV: the set (`due:`, or
-- `failing`: of those of which an attempt has failed still, unless they are paused), how many milliseconds ago that time is at
-- the least, the most rows.
local set, until_then, limit = T .. ARGV[1], whole(now - tonumber(ARGV[2])), tonumber(ARGV[3])
local found, first = {}, 0

local function belongs(row)
  if ARGV[1] == 'due:' then
    return true
  end
  local is = call('HMGET', row, 'attempts', 'status', 'paused_from', 'paused_until')
  local failed = (tonumber(is[1]) or 0) - (is[2] == 'running' and 1 or 0)
  return failed > 0 and not (is[3] and not is[4])
end

while #found < limit do
  local keys = call('ZRANGEBYSCORE', set, '-inf', until_then, 'LIMIT', first, limit)
  for _, key in ipairs(keys) do
    if #found < limit then
      local row = without_data(key)
      if #row > 0 and belongs(row_of(key)) then
        found[#found + 1] = {key, row}
      end
    end
  end
  if #keys < limit then
    break
  end
  first = first + limit
end
return found
