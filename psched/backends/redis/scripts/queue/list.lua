-- Returns a page by key: the last key that was looked at ('' when that was the last of all), then rows, each a list of the
-- key, then fields and values. ARGV: the most keys to look at, the last key before ('' at first), and the wanted status,
-- type and user ('' for any).
local MOST_BYTES = 4000000
local page, bytes, rows = tonumber(ARGV[1]), 0, {}
local keys = call('ZRANGEBYLEX', T .. 'keys', ARGV[2] == '' and '-' or '(' .. ARGV[2], '+', 'LIMIT', 0, page)
local last = #keys == page and keys[page] or ''
for _, key in ipairs(keys) do
  local is = redis.pcall('HMGET', row_of(key), 'status', 'type', 'user')
  local wanted = is[1]
  for place = 1, 3 do
    wanted = wanted and (ARGV[place + 2] == '' or ARGV[place + 2] == is[place])
  end
  if wanted then
    local found = call('HGETALL', row_of(key))
    rows[#rows + 1] = {key, found}
    for _, value in ipairs(found) do
      bytes = bytes + #value
    end
    if bytes > MOST_BYTES then
      last = key
      break
    end
  end
end
return {last, rows}
