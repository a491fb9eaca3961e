-- Statistics of runs: a hash for each minute and each hour, `stats:60:<begin>` and `stats:3600:<begin>`. A field is the
-- JSON array of node, type and outcome. Its value is the number of the call that last wrote it, then the sums.

local function stats_of(span, begin)
  return T .. 'stats:' .. span .. ':' .. begin
end

--- script KIND/add_stats: common, KIND, run_stats
-- Adds to the sums of minutes and hours. A call that is sent twice counts once.
-- ARGV: the call's number; then for each row its span, the begin of the span, the seconds for which it is kept, its
-- field, and its sums as numbers separated by spaces.
for place = 2, #ARGV, 5 do
  local key, field, given = stats_of(ARGV[place], ARGV[place + 1]), ARGV[place + 3], ARGV[place + 4]
  local before = call('HGET', key, field)
  local number, sums = (before or ''):match('^(%d+) (.*)$')
  if number ~= ARGV[1] then
    if number then
      local added, old = {}, sums:gmatch('%d+')
      for text in given:gmatch('%d+') do
        added[#added + 1] = integer(tonumber(text) + tonumber(old() or 0))
      end
      given = table.concat(added, ' ')
    end
    call('HSET', key, field, ARGV[1] .. ' ' .. given)
    call('EXPIREAT', key, integer(ARGV[place + 1] + ARGV[place] + ARGV[place + 2]))
  end
end
return 1

--- script KIND/read_stats: common, KIND, run_stats
-- Returns {begin, fields and values of its hash} for each span with runs. ARGV: the span, then the begins.
local found = {}
for place = 2, #ARGV do
  local fields = call('HGETALL', stats_of(ARGV[1], ARGV[place]))
  if #fields > 0 then
    found[#found + 1] = {ARGV[place], fields}
  end
end
return found
