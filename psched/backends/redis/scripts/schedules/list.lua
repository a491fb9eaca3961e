-- Returns a page of rows by due time and key, each a list of the key, its fields and values (none when there is no such
-- hash), and the due time by which it has its place.
-- ARGV: the most rows of a page, and due time and key of the last row before ('' and '' at first).
local MOST_BYTES = 4000000
local places, page, bytes = T .. 'due:', tonumber(ARGV[1]), 0

local function is_behind(place)
  local found = call('ZRANGE', places, place, place, 'WITHSCORES')
  local due, last = tonumber(found[2]), tonumber(ARGV[2])
  return due > last or (due == last and precedes(ARGV[3], found[1]))
end

local first = 0
if ARGV[2] ~= '' then
  local last = call('ZCARD', places)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if is_behind(middle) then
      last = middle
    else
      first = middle + 1
    end
  end
end
local rows = {}
local keys = call('ZRANGE', places, first, first + page - 1, 'WITHSCORES')
for at = 1, #keys, 2 do
  local found = redis.pcall('HGETALL', row_of(keys[at]))
  for _, value in ipairs(found) do
    bytes = bytes + #value
  end
  rows[#rows + 1] = {keys[at], found.err and {} or found, keys[at + 1]}
  if bytes > MOST_BYTES then
    break
  end
end
return rows
