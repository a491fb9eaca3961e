-- Submitting tasks. What goes into one sorted set goes there together, as many rows have their sets in common.

local AT_ONCE = 2000  -- arguments of one command; Lua takes some thousands
local OPTIONAL = {[5] = 'max_running', [7] = 'max_attempts'}  -- what a row need not have, and where it stands

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

-- Fails before anything is written where new rows (from `first` on, see below) cannot wait, as somebody has spoilt a key: a
-- row that waits nowhere would never be run.
local function see_that_they_can_wait(first)
  local seen, type_before, user_before, time_before = {}, nil, nil, nil
  call('ZCARD', T .. 'keys')
  for place = first + 1, #ARGV, 8 do
    local type, user, time = ARGV[place + 1], ARGV[place + 4], ARGV[place + 3]
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

-- Creates the rows that stand in ARGV from `first` on: a nonce, then for each row key, type, data, run_at ('' for now),
-- user, max_running (or ''), priority and max_attempts (or ''). Returns the keys that exist, but for those that a call
-- with this very nonce has written.
local function submit(first)
  local sets, lines, fresh = {}, {}, {}
  local nonce, present, news, fence, at = ARGV[first], {}, 0, nil, whole(now)
  local where, like = nil, {}
  for place = first + 1, #ARGV, 8 do
    local key, row = ARGV[place], row_of(ARGV[place])
    if call('EXISTS', row) == 1 then
      if call('HGET', row, 'nonce') ~= nonce then
        present[#present + 1] = key
      end
    else
      local type, user, priority = ARGV[place + 1], ARGV[place + 4], ARGV[place + 6]
      local run_at = ARGV[place + 3] == '' and at or ARGV[place + 3]
      fence = fence or first_fence(T)
      local fields = {'type', type, 'data', ARGV[place + 2], 'run_at', run_at, 'user', user, 'priority', priority,
        'nonce', nonce, 'fence', fence, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0', 'created', at,
        'status', 'waiting', 'due', run_at, 'updated', at}
      for offset, name in pairs(OPTIONAL) do
        if ARGV[place + offset] ~= '' then
          fields[#fields + 1], fields[#fields + 2] = name, ARGV[place + offset]
        end
      end
      call('HSET', row, unpack(fields))
      if type ~= like[1] or user ~= like[2] or priority ~= like[3] or run_at ~= like[4] then
        like = {type, user, priority, run_at}
        where = place_of(lines, type, user, tonumber(priority), tonumber(run_at))
      end
      collect(sets, T .. 'keys', 0, key)
      collect(sets, where[1], where[3], key)
      collect(sets, where[2], where[3], key)
      fresh[key] = true
      news = news + 1
    end
  end
  settle_down(sets, lines, fresh)
  ring(T, news)
  return present
end
