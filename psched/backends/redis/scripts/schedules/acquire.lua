-- Leases the rows that have been due longest. ARGV: the most rows, the lease in milliseconds, 1 when the runs begin later
-- (else 0), holder, number of this acquire, spans of earlier ones to be undone (counted), types (counted; -1 for any). Returns rows: key and CLAIMED, of
-- what is no hash none.
local AHEAD = 200  -- rows looked at once behind some that turned out to be none
local ROUNDS = 6   -- how often that is done

local limit, ahead, holder, number = tonumber(ARGV[1]), ARGV[3] == '1', ARGV[4], ARGV[5]
local ends = now + tonumber(ARGV[2])
local undone, place = counted(6)
local types = counted(place)
undo(holder, undone)

-- Returns rows that are due, those of all types that were asked for in one order.
local function due_rows(most)
  local due = {}
  for _, type in ipairs(ARGV[place] == '-1' and {''} or earliest(types, 'due:')) do
    local found = call('ZRANGEBYSCORE', T .. 'due:' .. type, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, most)
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
  return due
end

-- What was taken, or forgotten since it is no row, is due no more: then there may be others.
local rows, strange, seen, most, bytes = {}, {}, {}, limit, 0
for _ = 1, ROUNDS do
  local due = due_rows(most)
  for _, row in ipairs(due) do
    if #rows == limit then
      break
    end
    local size = limit > 1 and size_of(redis.pcall('HGET', row_of(row.key), 'size')) or 0
    local is_over = #rows > 0 and not seen[row.key] and bytes + size > BATCH
    if is_over and call('EXISTS', row_of(row.key)) == 1 then
      limit = #rows  -- it is too large for this acquire
      break
    end
    local found = not seen[row.key] and take(row.key, row.type, ends, ahead, holder, number)
    seen[row.key] = true
    if found and #found == 0 then
      strange[#strange + 1] = {row.key, found}
    elseif found then
      rows[#rows + 1] = {row.key, found}
      bytes = bytes + size
    end
  end
  if #rows == limit or #due == 0 then
    break
  end
  most = AHEAD
end
for _, row in ipairs(strange) do
  rows[#rows + 1] = row
end
return rows
