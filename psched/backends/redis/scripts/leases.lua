-- What schedules and queue tasks have in common, on top of their own `row_of`, `settle`, `renew`, `take` and `remove`.

-- Returns the wait (milliseconds) of a row, which is to wait because of the definition with that version ('' for any): none
-- when it has another one now.
local function wait_of(row, wait, version)
  local is_other = version ~= '' and version_in(row) ~= version
  return is_other and 0 or tonumber(wait)
end

-- Makes rows as they were before acquires of a holder whose answers were lost: `spans` has the first and the last number of
-- acquires in a row, one pair after another.
local function undo(holder, spans)
  if #spans == 0 then
    return
  end
  for _, key in ipairs(marked(T .. 'held:' .. holder)) do
    local row = row_of(key)
    local was = redis.pcall('HMGET', row, 'claim', 'ready')
    local number = tonumber(was[1]) or -1
    for place = 1, #spans, 2 do
      if number >= tonumber(spans[place]) and number <= tonumber(spans[place + 1]) then
        grow(row, 'attempts', -1)
        settle(key, tonumber(was[2]) or now)
        break
      end
    end
  end
end

local TOGETHER = 16  -- types whose rows are compared by one look: each row that is taken costs a look at each of them

-- Returns of many types those whose first rows in their `set` come first, and whether there are more with rows.
local function earliest(types, set)
  if #types <= TOGETHER then
    return types, false
  end
  local heads, chosen = {}, {}
  for _, type in ipairs(types) do
    local head = call('ZRANGE', T .. set .. type, 0, 0, 'WITHSCORES')
    if head[1] then
      heads[#heads + 1] = {type = type, due = tonumber(head[2])}
    end
  end
  table.sort(heads, function(one, other)
    if one.due ~= other.due then
      return one.due < other.due
    end
    return precedes(one.type, other.type)
  end)
  for place = 1, math.min(TOGETHER, #heads) do
    chosen[place] = heads[place].type
  end
  return chosen, #heads > TOGETHER
end

local KNOWN = 600000      -- milliseconds after which it is noted anew that a type has rows
local FORGOTTEN = 3600000 -- and after which one that has none is forgotten

-- Returns each type that has rows, followed by the milliseconds until its earliest row is due. `sets`: the sorted sets of
-- rows by due time, without the type in their names. A type that has a set `waiting` is due now, as any is if `all_due`.
local function due_by_type(sets, waiting, all_due)
  local found, types = {}, call('ZRANGE', T .. 'types', 0, -1, 'WITHSCORES')
  for place = 1, #types, 2 do
    local type, noted, earliest, names = types[place], tonumber(types[place + 1]), nil, {}
    for number, name in ipairs(sets) do
      names[number] = T .. name .. type
    end
    if waiting and call('EXISTS', T .. waiting .. type) == 1 then
      earliest = 0
    elseif call('EXISTS', unpack(names)) > 0 then
      for _, name in ipairs(names) do
        local head = call('ZRANGE', name, 0, 0, 'WITHSCORES')
        if head[1] then
          earliest = math.min(earliest or math.huge, tonumber(head[2]))
        end
      end
    end
    if earliest then
      found[#found + 1], found[#found + 2] = type, all_due and '0' or whole(math.max(0, earliest - now))
    end
    if earliest and noted < now - KNOWN then
      call('ZADD', T .. 'types', 'XX', whole(now), type)
    elseif not earliest and noted < now - FORGOTTEN then
      call('ZREM', T .. 'types', type)
    end
  end
  return found
end
