-- Submits tasks. One command adds the members of one sorted set, because most rows share their sets.

local MAX_ARGUMENTS = 2000  -- the maximum number of arguments of one command, because Lua limits `unpack`

-- Returns the columns of new rows from the JSON in ARGV[place]: keys, types, data, times ('' for now), users,
-- max_running (or ''), priorities, max_attempts (or ''), sizes and headers (or ''). A column that is not a list has one
-- value for all rows.
local decoded = {}
local function read_columns(place)
  if not decoded[place] then
    local columns = cjson.decode(ARGV[place])
    for number, column in ipairs(columns) do
      if type(column) ~= 'table' then
        columns[number] = setmetatable({}, {__index = function() return column end})
      end
    end
    decoded[place] = columns
  end
  return unpack(decoded[place])
end

local function collect(sets, name, score, key)
  local set = sets[name] or {}
  set[#set + 1], set[#set + 2] = score, key
  if #set >= MAX_ARGUMENTS then
    call('ZADD', name, unpack(set))
    set = {}
  end
  sets[name] = set
end

-- Returns the place of a new waiting row: its two sorted sets (of all rows, and of its type), and its score in both.
local function position_of(lines, type, user, priority, due)
  if due > now then
    return {T .. 'later:', T .. 'later:' .. type, integer(due)}
  end
  local all, own = line_of('', user), line_of(type, user)
  lines[all], lines[own] = {kind = '', user = user}, {kind = type, user = user}
  return {all, own, line_score(priority, due)}
end

-- Adds the collected members, and updates the turns of users whose lines now begin with a new row.
local function write_sets(sets, lines, fresh)
  for name, set in pairs(sets) do
    if #set > 0 then
      call('ZADD', name, unpack(set))
    end
  end
  for name, line in pairs(lines) do
    local head = call('ZRANGE', name, 0, 0, 'WITHSCORES')
    if fresh[head[1]] then
      update_turn(line.kind, line.user, head)
    end
  end
end

-- Fails before anything is written if new rows could not be queued because a key has the wrong type. Such rows would
-- never run.
local function check_queue_writable(first)
  local seen, type_before, user_before, time_before = {}, nil, nil, nil
  local keys, types, _, times, users = read_columns(first + 1)
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
      call('SCARD', T .. 'blocked:' .. user)
    end
  end
end

-- Creates rows. The arguments from ARGV[first] on are: creation number, columns. Returns the keys that existed, except
-- keys that an earlier attempt with the same creation number has written.
local function submit_tasks(first)
  local sets, lines, fresh = {}, {}, {}
  local nonce, present, news, kinds, fence, at = ARGV[first], {}, 0, {}, nil, integer(now)
  local keys, types, data, times, users, limits, priorities, attempts, sizes, headers = read_columns(first + 1)
  local where, fields, previous = nil, nil, {}
  for number, key in ipairs(keys) do
    local row = row_of(key)
    if call('EXISTS', row) == 1 then
      if nonce_of(row) ~= nonce then  -- an error here, for a key that is no hash, would lose rows
        present[#present + 1] = key
      end
    else
      local type, run_at, user, limit = types[number], times[number], users[number], limits[number]
      local priority, most, about = priorities[number], attempts[number], headers[number]
      if not fields or type ~= previous[1] or run_at ~= previous[2] or user ~= previous[3] or limit ~= previous[4]
        or priority ~= previous[5] or most ~= previous[6] or about ~= previous[7] then
        previous = {type, run_at, user, limit, priority, most, about}
        run_at = run_at == '' and at or run_at
        fence = fence or first_fence(T)
        fields = {'data', '', 'size', '', 'type', type, 'run_at', run_at, 'user', user, 'priority', priority,
          'nonce', nonce, 'fence', fence, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0', 'created', at,
          'status', 'waiting', 'due', run_at, 'updated', at}
        if limit ~= '' then
          fields[#fields + 1], fields[#fields + 2] = 'max_running', limit
        end
        if most ~= '' then
          fields[#fields + 1], fields[#fields + 2] = 'max_attempts', most
        end
        if about ~= '' then
          fields[#fields + 1], fields[#fields + 2] = 'headers', about
        end
        note_type(T, type)
        if not kinds[type] then
          kinds[type], kinds[#kinds + 1] = true, type
        end
        where = position_of(lines, type, user, tonumber(priority), tonumber(run_at))
      end
      fields[2], fields[4] = data[number], sizes[number]  -- consecutive rows usually differ only in these fields
      call('HSET', row, unpack(fields))
      collect(sets, T .. 'keys', 0, key)
      collect(sets, where[1], where[3], key)
      collect(sets, where[2], where[3], key)
      fresh[key] = true
      news = news + 1
    end
  end
  write_sets(sets, lines, fresh)
  wake(T, news, kinds)
  return present
end

--- script queue/submit: common, queue, submit
-- Creates tasks. ARGV: creation number, columns, `one` or `many`. Returns the keys that existed.
if ARGV[3] == 'many' then  -- not for a single row: it should be cheap, and leaves no others half done
  check_queue_writable(1)
end
return submit_tasks(1)

--- script schedules/advance_and_submit: common, schedules, ledger, alerts, schedule_runs, queue, submit
-- Advances a schedule and submits tasks, both or neither. ARGV: the arguments of `advance_row`, then those of
-- `submit_tasks`.
-- Returns the answer of `advance_row` as its only element.
check_queue_writable(1 + ADVANCE)
local refused = advance_row(1)
if not refused then
  submit_tasks(1 + ADVANCE)
end
return {refused or false}
