-- Leases the rows that have been due longest. ARGV: the most rows, the lease in milliseconds, holder, number of this
-- acquire, spans of earlier ones to be undone (counted), types (counted; -1 for any). Returns rows: key and fields, of
-- what is no hash none.
local limit, holder, number = tonumber(ARGV[1]), ARGV[3], ARGV[4]
local ends = now + tonumber(ARGV[2])
local undone, place = counted(5)
local types = counted(place)
undo(holder, undone)

local due = {}
for _, type in ipairs(ARGV[place] == '-1' and {''} or types) do
  local found = call('ZRANGEBYSCORE', T .. 'due:' .. type, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, limit)
  for at = 1, #found, 2 do
    due[#due + 1] = {key = found[at], due = tonumber(found[at + 1]), type = type}
  end
end
if #types > 1 then
  table.sort(due, function(one, other)
    if one.due ~= other.due then
      return one.due < other.due
    end
    return precedes(one.key, other.key)
  end)
end

local rows = {}
for at = 1, math.min(limit, #due) do
  local found = take(due[at].key, due[at].type, ends, holder, number)
  if found then
    rows[#rows + 1] = {due[at].key, found}
  end
end
return rows
