-- Submitting tasks. What goes into one sorted set goes there together, as many rows have their sets in common.

local AT_ONCE = 2000  -- arguments of one command; Lua takes some thousands

-- Returns what is told of new rows in ARGV[place], by columns: keys, types, data, times ('' for now), users, max_running (or
-- ''), priorities, max_attempts (or '') and sizes. What all rows have in common is told once. More than one function looks at them.
local decoded = {}
local function columns_in(place)
  if not decoded[place] then
    local columns = cjson.decode(ARGV[place])
    for number, told in ipairs(columns) do
      if type(told) ~= 'table' then
        columns[number] = setmetatable({}, {__index = function() return told end})
      end
    end
    decoded[place] = columns
  end
  return unpack(decoded[place])
end

local function collect(sets, name, score, key)
  local set = sets[name] or {}
  set[#set + 1], set[#set + 2] = score, key
  if #set >= AT_ONCE then
    call('ZADD', name, unpack(set))
    set = {}
  end
  sets[name] = set
end

-- Returns where a new row waits: two sorted sets, of all rows and of its type, and its score in both. Rows that come one after
-- the other are mostly alike, and then asked for once.
local function place_of(lines, type, user, priority, due)
  if due > now then
    return {T .. 'later:', T .. 'later:' .. type, whole(due)}
  end
  local all, own = line_of('', user), line_of(type, user)
  lines[all], lines[own] = {kind = '', user = user}, {kind = type, user = user}
  return {all, own, place_in_line(priority, due)}
end

-- Adds what was collected, and lets users take their turns whose lines begin with a new row.
local function settle_down(sets, lines, fresh)
  for name, set in pairs(sets) do
    if #set > 0 then
      call('ZADD', name, unpack(set))
    end
  end
  for name, line in pairs(lines) do
    local head = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    if fresh[head[1]] then
      enter(line.kind, line.user, head)
    end
  end
end

-- Fails before anything is written where new rows (see below) cannot wait, as somebody has spoilt a key: a row that waits
-- nowhere would never be run.
local function see_that_they_can_wait(first)
  local seen, type_before, user_before, time_before = {}, nil, nil, nil
  local keys, types, _, times, users = columns_in(first + 1)
  call('ZCARD', T .. 'keys')
  for number = 1, #keys do
    local type, user, time = types[number], users[number], times[number]
    local is_due = (tonumber(time) or now) <= now
    local is_other = type ~= type_before or user ~= user_before or time ~= time_before
    local sort = is_other and line_of(type, user) .. (is_due and ':due' or ':later')
    type_before, user_before, time_before = type, user, time
    if sort and not seen[sort] then
      seen[sort] = true
      for _, kind in ipairs({'', type}) do
        call('ZCARD', is_due and line_of(kind, user) or T .. 'later:' .. kind)
        call('ZCARD', T .. 'turn:' .. kind)
      end
      call('SCARD', T .. 'parked:' .. user)
    end
  end
end

-- Creates the rows that ARGV tells of: from `first` on it has a nonce and the columns. Returns the keys that exist, but for
-- those that a call with this very nonce has written.
local function submit(first)
  local sets, lines, fresh = {}, {}, {}
  local nonce, present, news, kinds, fence, at = ARGV[first], {}, 0, {}, nil, whole(now)
  local keys, types, data, times, users, limits, priorities, attempts, sizes = columns_in(first + 1)
  local where, fields, like = nil, nil, {}
  for number, key in ipairs(keys) do
    local row = row_of(key)
    if call('EXISTS', row) == 1 then
      if call('HGET', row, 'nonce') ~= nonce then
        present[#present + 1] = key
      end
    else
      local type, run_at, user, limit = types[number], times[number], users[number], limits[number]
      local priority, most = priorities[number], attempts[number]
      if not fields or type ~= like[1] or run_at ~= like[2] or user ~= like[3] or limit ~= like[4] or priority ~= like[5]
        or most ~= like[6] then
        like = {type, run_at, user, limit, priority, most}
        run_at = run_at == '' and at or run_at
        fence = fence or first_fence(T)
        fields = {'data', '', 'size', '', 'type', type, 'run_at', run_at, 'user', user, 'priority', priority, 'nonce', nonce,
          'fence', fence, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0', 'created', at, 'status', 'waiting',
          'due', run_at, 'updated', at}
        if limit ~= '' then
          fields[#fields + 1], fields[#fields + 2] = 'max_running', limit
        end
        if most ~= '' then
          fields[#fields + 1], fields[#fields + 2] = 'max_attempts', most
        end
        know_type(T, type)
        if not kinds[type] then
          kinds[type], kinds[#kinds + 1] = true, type
        end
        where = place_of(lines, type, user, tonumber(priority), tonumber(run_at))
      end
      fields[2], fields[4] = data[number], sizes[number]  -- rows that come one after the other mostly differ by that alone
      call('HSET', row, unpack(fields))
      collect(sets, T .. 'keys', 0, key)
      collect(sets, where[1], where[3], key)
      collect(sets, where[2], where[3], key)
      fresh[key] = true
      news = news + 1
    end
  end
  settle_down(sets, lines, fresh)
  ring(T, news, kinds)
  return present
end
