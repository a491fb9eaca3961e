-- Returns rows whose occurrence is overdue, those longest overdue first, each a list of the key, the row without its data, and the time.
-- ARGV: the most rows, and 1 for those that nobody has told of, and nobody is telling of (else 0).
local limit, found = tonumber(ARGV[1]), {}

local function look(name, at_most)
  local first = 0
  while #found < at_most do
    local keys = call('ZRANGEBYSCORE', T .. name, '-inf', whole(now), 'WITHSCORES', 'LIMIT', first, limit)
    for at = 1, #keys, 2 do
      local row = without_data(keys[at])
      local rings = ARGV[2] == '1' and tonumber(call('HGET', row_of(keys[at]), 'ringing_until')) or 0
      if #row > 0 and rings <= now then
        found[#found + 1] = {keys[at], row, tonumber(keys[at + 1])}
      end
    end
    if #keys < limit * 2 then
      return
    end
    first = first + limit
  end
end

look('alert', limit)
if ARGV[2] ~= '1' then
  look('told', limit * 2)
  table.sort(found, function(one, other)
    return one[3] < other[3] or (one[3] == other[3] and precedes(one[1], other[1]))
  end)
end
local rows = {}
for at = 1, math.min(limit, #found) do
  rows[at] = {found[at][1], found[at][2], whole(now)}
end
return rows
