-- Queue tasks. Waiting rows that are not due are in `later:<type>`; due rows are in lines, one line for each user;
-- running rows are in `leases:<type>` (by the end of their lease) and in `run:<user>`. The empty type means all types,
-- so each row is in two sets of each kind.
-- A line is `line:<bytes of the type>:<type>:<user>`; its rows are in the order in which they run. `turn:<type>` has
-- the users with a line, by the due time of the line's first row. It leaves out users without room (max_running). For
-- such a user, `blocked:<user>` has the types of the blocked lines until one of the user's runs ends. `ended:failed`
-- and `ended:cancelled` have the failed and the cancelled rows.

do
  local fault = table_problem(KEYS[#KEYS], 'queue')
  if fault then
    return redis.error_reply(fault)
  end
end

local T = prefix_of(KEYS[#KEYS])
local DUE_SETS, LINES = {'later:', 'leases:'}, 'turn:'  -- prefixes of sets by due time; of sets of rows due now
local SPAN = 2 ^ 44  -- milliseconds: the distance of two priorities; enough for due times before 2527

local function row_of(key)
  return T .. 'row:' .. key
end

-- Returns type, user, priority and due time of a row. Invalid values are replaced by defaults.
local function facts_of(key)
  local fields = call('HMGET', row_of(key), 'type', 'user', 'priority', 'due')
  return fields[1] or '', fields[2] or '', tonumber(fields[3]) or 0, tonumber(fields[4]) or now
end

local function line_of(type, user)
  return T .. 'line:' .. #type .. ':' .. type .. ':' .. user
end

-- Records that there are rows of a type. Must be called whenever a row is added to `later:`, `turn:` or `leases:`,
-- because a type without rows in these sets may have been removed.
local function note_type_of(type)
  if type ~= '' then  -- '' means all types
    note_type(T, type)
  end
end

-- Updates a user's turn from the first row of the user's line. The caller may pass this row.
local function update_turn(type, user, head)
  head = head or call('ZRANGE', line_of(type, user), 0, 0, 'WITHSCORES')
  if user ~= '' then  -- tasks without user have no limit
    call('SREM', T .. 'blocked:' .. user, type)
  end
  if head[1] then
    call('ZADD', T .. 'turn:' .. type, integer(tonumber(head[2]) % SPAN), user)
    note_type_of(type)
  else
    call('ZREM', T .. 'turn:' .. type, user)
  end
end

local function block_user(type, user)
  call('ZREM', T .. 'turn:' .. type, user)
  call('SADD', T .. 'blocked:' .. user, type)
end

-- Gives a user who may have room a turn again, and wakes workers.
local function unblock_user(user)
  local types = call('SMEMBERS', T .. 'blocked:' .. user)
  for _, kind in ipairs(types) do
    update_turn(kind, user)
  end
  if #types > 0 then
    wake(T, 1, types)
  end
end

local function add_to_sets(name, key, type, score)
  call('ZADD', T .. name .. ':', score, key)
  call('ZADD', T .. name .. ':' .. type, score, key)
end

local function remove_from_sets(name, key, type)
  call('ZREM', T .. name .. ':' .. type, key)
  return call('ZREM', T .. name .. ':', key)
end

-- Returns a row's score in its lines: priority first, then due time.
local function line_score(priority, due)
  return integer((100 - priority) * SPAN + math.min(math.max(due, 0), SPAN - 1))
end

-- Adds a due row to its lines.
local function add_to_lines(key, type, user, priority, due)
  local score = line_score(priority, due)
  for _, kind in ipairs({'', type}) do
    local line = line_of(kind, user)
    call('ZADD', line, score, key)
    local head = call('ZRANGE', line, 0, 0, 'WITHSCORES')
    if head[1] == key then
      update_turn(kind, user, head)
    end
  end
end

-- Adds a waiting row to `later:`, or to its lines if it is due.
local function enqueue(key, type, user, priority, due)
  if due > now then
    add_to_sets('later', key, type, integer(due))
    note_type_of(type)
  else
    add_to_lines(key, type, user, priority, due)
  end
end

-- Makes a row wait until `due`. `history`: its new field `endings`, if its holder has ended the lease.
local function make_waiting(key, due, history)
  local type, user, priority = facts_of(key)
  call('HSET', row_of(key), 'status', 'waiting', 'due', integer(due), 'updated', integer(now),
    unpack(history and {'endings', history} or {}))
  enqueue(key, type, user, priority, due)
end

-- Removes a waiting row from `later:` or from its lines.
local function dequeue(key)
  local type, user = facts_of(key)
  if remove_from_sets('later', key, type) == 0 then
    for _, kind in ipairs({'', type}) do
      call('ZREM', line_of(kind, user), key)
      update_turn(kind, user)
    end
  end
end

-- Returns the max_running of a row; nil if it has none or an invalid one.
local function limit_of(text)
  local found = tonumber(text)
  return found and found >= 1 and found < 2 ^ 31 and found or nil
end

-- Takes back the attempt of a running row whose run never started, because its lease has expired or is taken from its
-- holder.
local function uncount_unstarted(row)
  if is_taken_ahead(call('HGET', row, 'taken_ahead')) then
    increment(row, 'attempts', -1)
  end
end

-- Leases a row that is in no line. `ahead`: whether its run starts later.
local function lease_row(key, ends, ahead, holder, number)
  local row = row_of(key)
  local fields = call('HMGET', row, 'type', 'user', 'due', 'max_running', 'fence', 'taken_ahead')
  local type, user = fields[1] or '', fields[2] or ''
  increment(row, 'attempts', 1)
  call('HSET', row, 'fence', next_fence(fields[5]), 'status', 'running',
    'ready', integer(tonumber(fields[3]) or now), 'due', integer(ends), 'claim', number, 'holder', holder,
    'node', holder, 'taken_ahead', taken_ahead_value(ahead, fields[6] == '3'), 'updated', integer(now))
  add_to_sets('leases', key, type, integer(ends))
  call('ZADD', T .. 'run:' .. user, limit_of(fields[4]) or '+inf', key)
  call_repairing('SADD', T .. 'held:' .. holder, key)
end

-- Returns the fields of a claim on a row that was just leased.
local function claim_fields(key)
  return call('HMGET', row_of(key), 'type', 'data', 'attempts', 'last_error', 'cancel_requested', 'run_at', 'created',
    'user', 'max_running', 'priority', 'max_attempts', 'headers', 'fence', 'due', 'claim', 'nonce', 'taken_ahead')
end

-- Ends the lease of a row, which is then in no line. Gives its user a turn again.
local function release_lease(key)
  local row = row_of(key)
  local type, user = facts_of(key)
  call_repairing('SREM', T .. 'held:' .. (call('HGET', row, 'holder') or ''), key)
  call('HDEL', row, 'holder')
  remove_from_sets('leases', key, type)
  call('ZREM', T .. 'run:' .. user, key)
  unblock_user(user)
end

-- Ends the lease of a row and makes it due at `due`. `history`: see `make_waiting`.
local function end_lease(key, due, history)
  local type, _, _, ends = facts_of(key)
  release_lease(key)
  make_waiting(key, due, history)
  if due < ends then
    wake(T, 1, {type})
  end
end

-- Makes the lease of a row end at `ends`. `begun`: whether its run is recorded as started.
local function extend_lease(key, ends, begun)
  local type, _, _, due = facts_of(key)
  call('HSET', row_of(key), 'due', integer(ends), 'updated', integer(now), unpack(begun and {'taken_ahead', '0'} or {}))
  add_to_sets('leases', key, type, integer(ends))
  if ends < due then
    wake(T, 1, {type})
  end
end

-- Finishes a row that neither waits nor runs. Keeps it for `retention` milliseconds ('' for ever), without the progress
-- of an earlier run. `history`: see `make_waiting`.
local function retire_row(key, status, retention, history)
  local row = row_of(key)
  call('HDEL', row, 'due', 'progress')
  call('HSET', row, 'status', status, 'finished_at', integer(now), 'updated', integer(now),
    unpack(history and {'endings', history} or {}))
  if retention ~= '' then
    local over = integer(now + tonumber(retention))
    call('HSET', row, 'purge_at', over)
    call('ZADD', T .. 'purge', over, key)
  end
  if status ~= 'finished' then
    call('ZADD', T .. 'ended:' .. status, 0, key)
  end
end

-- Removes a row from the sets of waiting or running rows. Returns its status; nil if there is no row.
local function take_out(key)
  local status = call('HGET', row_of(key), 'status')
  if status == 'waiting' then
    dequeue(key)
  elseif status == 'running' then
    release_lease(key)
  end
  return status
end

-- Returns the status of a row; false if there is no row with this creation number.
local function status_of(key, nonce)
  return nonce_of(row_of(key)) == nonce and call('HGET', row_of(key), 'status')
end

-- Returns whether a row with this status may be changed. `only`: the status that it must have; '' for any.
local function is_allowed(status, only)
  return only == '' or status == only
end

-- Deletes a row in any state.
local function delete_row(key)
  local is_hash = call('TYPE', row_of(key)).ok == 'hash'
  local status = is_hash and take_out(key)
  local fence = status and call('HGET', row_of(key), 'fence')
  call('DEL', row_of(key))  -- first, because this frees memory
  call('ZREM', T .. 'keys', key)
  call('ZREM', T .. 'purge', key)
  if status ~= 'finished' then
    call('ZREM', T .. 'ended:failed', key)
    call('ZREM', T .. 'ended:cancelled', key)
  end
  if fence then
    keep_fence(T, fence)
  end
end

--- script queue/list: common, queue, leases
-- Returns a page by key: the last key that was examined ('' at the end), and rows as {key, fields and values}. ARGV:
-- the maximum number of rows, the last key of the page before ('' at first), the wanted status, type and user ('' for
-- any), prefix, milliseconds for which rows must have been due ('' for any).
local MAX_PAGE_BYTES, MAX_LOOKS, FEW = 4000000, 5000, 2000
local page, after, status, prefix, late = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[6], tonumber(ARGV[7])
local bytes, rows = 0, {}

-- Returns the members of the sets, unsorted; nil if there are more than FEW.
local function members_of_few(sets)
  local found, count = {}, 0
  for _, set in ipairs(sets) do
    count = count + call('ZCARD', set)
    if count > FEW then
      return nil
    end
    for _, member in ipairs(call('ZRANGE', set, 0, -1)) do
      found[#found + 1] = member
    end
  end
  return found
end

-- Returns the sets that contain all waiting rows; nil if there are many. A user without a turn has a running row.
local function sets_of_waiting()
  local users, running = members_of_few({T .. 'turn:'}), members_of_few({T .. 'leases:'})
  if not users or not running then
    return nil
  end
  for _, key in ipairs(running) do
    local _, user = facts_of(key)
    users[#users + 1] = user
  end
  local sets, seen = {T .. 'later:'}, {}
  for _, user in ipairs(users) do
    if not seen[user] then
      seen[user] = true
      sets[#sets + 1] = line_of('', user)
    end
  end
  return sets
end

-- Returns the keys after `after` that may have the wanted status, in order; nil if there are many.
local function few_keys()
  local sets = ({running = {T .. 'leases:'}, finished = {T .. 'purge'}})[status]
  if status == 'waiting' then
    sets = sets_of_waiting()
  end
  local found, keys = sets and members_of_few(sets), {}
  if not found then
    return nil
  end
  for _, key in ipairs(found) do
    if is_less(after, key) then
      keys[#keys + 1] = key
    end
  end
  table.sort(keys, is_less)
  return keys
end

-- Returns up to `count` keys from the set of all rows, or from the set of failed or cancelled rows.
local function next_keys(count)
  local first = after == '' and '-' or '(' .. after
  if is_less(after, prefix) then
    first = '[' .. prefix
  end
  local set = (status == 'failed' or status == 'cancelled') and 'ended:' .. status or 'keys'
  return call('ZRANGEBYLEX', T .. set, first, '+', 'LIMIT', 0, count)
end

local function is_wanted(key)
  local fields = redis.pcall('HMGET', row_of(key), 'status', 'type', 'user', 'due')
  local wanted = fields[1]
  for place = 1, 3 do
    wanted = wanted and (ARGV[place + 2] == '' or ARGV[place + 2] == fields[place])
  end
  return wanted and (not late or (tonumber(fields[4]) or math.huge) <= now - late)
end

local keys, count = few_keys(), FEW + 1
if not keys then
  count = (status .. ARGV[4] .. ARGV[5] == '') and page or MAX_LOOKS
  keys = next_keys(count)
end
for _, key in ipairs(keys) do
  local begins = key:sub(1, #prefix) == prefix
  if not begins and is_less(prefix, key) then
    return {'', rows}
  end
  if begins and is_wanted(key) then
    local found = call('HGETALL', row_of(key))
    rows[#rows + 1] = {key, found}
    for _, value in ipairs(found) do
      bytes = bytes + #value
    end
    if #rows == page or bytes > MAX_PAGE_BYTES then
      return {key, rows}
    end
  end
end
return {#keys == count and keys[count] or '', rows}

--- script queue/retire_many: common, queue, leases, alerts, outbox
-- Retires leased rows. ARGV: status, retention in milliseconds ('' for ever), the number of attempts ('' for
-- unchanged), the error ('' for none), name and members for `keep_failure`. Then 2, and key and lease of each row; or
-- 4, and for each row its key, lease, result and progress ('' for none); or 5, and also the event of its end. Returns
-- the answers of `settle_each`.
local status, retention, attempts, problem, failure, members = unpack(ARGV, 1, 6)
local step = tonumber(ARGV[7])
return settle_each(8, step, function(key, row, lease, place)
  keep_failure(failure, members)
  if step == 5 then
    put_event(ARGV[place + 4])
  end
  release_lease(key)
  retire_row(key, status, retention, lease_outcomes(row, lease, status))
  if attempts ~= '' then
    call('HSET', row, 'attempts', attempts)
  end
  if problem ~= '' then
    call('HSET', row, 'last_error', problem)
  end
  for number = 2, math.min(step, 4) - 1 do
    if ARGV[place + number] ~= '' then
      call('HSET', row, number == 2 and 'result' or 'progress', ARGV[place + number])
    end
  end
end)

--- script queue/update_progress: common, queue, leases
-- Writes the progress of leased rows. ARGV: progress, then key and lease of each row. Returns the answers of
-- `settle_each`.
return settle_each(2, 2, function(_, row)
  call('HSET', row, 'progress', ARGV[1], 'updated', integer(now))
end)

--- script queue/outcomes: common, queue, leases
-- Returns the status, type, last error and result of each row. ARGV: keys.
local found = {}
for place, key in ipairs(ARGV) do
  local fields = redis.pcall('HMGET', row_of(key), 'status', 'type', 'last_error', 'result')
  found[place] = fields.err and {false, false, false, false} or fields
end
return found

--- script queue/update_data: common, queue, leases
-- Writes the data of a leased row. ARGV: data, its size, key, lease. Returns the answer of `settle_each` for this row.
-- Fails if the server's memory is full.
local row = row_of(ARGV[3])
local refused = lease_error(row, ARGV[4])
if not refused then
  call('HSET', row, 'data', ARGV[1], 'size', ARGV[2], 'updated', integer(now))
end
return {refused or false}

--- script queue/cancel_request: common, queue, leases, outbox
-- Retires a waiting row as cancelled; asks the run of a running row to stop. ARGV: key, creation number, retention in
-- milliseconds, event ('' for none), the only status in which this is done ('' for any). Returns {'done'}; else
-- {status}, where the status is missing if there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status ~= 'waiting' and status ~= 'running' or not is_allowed(status, ARGV[5]) then
  return {status}
end
call('HSET', row, 'cancel_requested', '1', 'updated', integer(now))
if status == 'waiting' then
  take_out(key)
  retire_row(key, 'cancelled', ARGV[3])
  put_event(ARGV[4])
end
return {'done'}

--- script queue/force_finish: common, queue, leases, outbox
-- Retires a row as finished, running or not. ARGV: key, creation number, retention in milliseconds, event ('' for
-- none). Returns {'done'}; else {status}, where the status is missing if there is no such row.
local key = ARGV[1]
local status = status_of(key, ARGV[2])
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
take_out(key)
increment(row_of(key), 'fence', 1)
retire_row(key, 'finished', ARGV[3])
put_event(ARGV[4])
return {'done'}

--- script queue/preempt: common, queue, leases
-- Leases a row to the caller, whether or not it is due or leased. ARGV: key, creation number, the lease in
-- milliseconds, holder, number of this call. Returns {'done', claim_fields}; else {status}, where the status is missing
-- if there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status == 'running' and call('HGET', row, 'claim') == ARGV[5] then  -- leased by an earlier attempt
  return {'done', claim_fields(key)}
end
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
if status == 'running' then
  uncount_unstarted(row)
end
take_out(key)
call('HSET', row, 'due', integer(now))
note_type_of((facts_of(key)))
lease_row(key, now + tonumber(ARGV[3]), false, ARGV[4], ARGV[5])
return {'done', claim_fields(key)}

--- script queue/retry_failed: common, queue, leases
-- Makes a failed or cancelled row due now, and resets its attempts. ARGV: key, creation number, and the row's fence
-- before an earlier attempt of this call ('' for the first attempt), the only status in which this is done ('' for
-- any). Returns {'done'}; else {status}, where the status is missing if there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status and ARGV[3] ~= '' and call('HGET', row, 'fence') ~= ARGV[3] then
  return {'done'}
end
if status ~= 'failed' and status ~= 'cancelled' or not is_allowed(status, ARGV[4]) then
  return {status}
end
call('ZREM', T .. 'purge', key)
call('ZREM', T .. 'ended:' .. status, key)
call('HDEL', row, 'finished_at', 'purge_at', 'progress')
increment(row, 'fence', 1)
call('HSET', row, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0')
make_waiting(key, now)
wake(T, 1, {(facts_of(key))})
return {'done'}

--- script queue/delete: common, queue, leases
-- Deletes a row, leased or not. ARGV: key, creation number, the only status in which this is done ('' for any). Returns
-- 1; 0 if the row has another status; nothing if there is no row, or a row with another creation number.
local key = ARGV[1]
if call('EXISTS', row_of(key)) == 0 or nonce_of(row_of(key)) ~= ARGV[2] then
  return false
end
if ARGV[3] ~= '' and not is_allowed(call('HGET', row_of(key), 'status'), ARGV[3]) then
  return 0
end
delete_row(key)
return 1

--- script queue/remove_lost_runs: common, queue, leases
-- Removes runs from `leases:` and from a user's set of runs if their rows are not running; this may give the user room.
-- ARGV: user ('' for the runs of tasks without user), keys.
local user = ARGV[1]
for place = 2, #ARGV do
  local key = ARGV[place]
  if call('EXISTS', row_of(key)) == 0 then
    call('ZREM', T .. 'keys', key)
  end
  if redis.pcall('HGET', row_of(key), 'status') ~= 'running' then
    call('ZREM', T .. 'leases:', key)
    call('ZREM', T .. 'run:' .. user, key)
  end
end
unblock_user(user)

--- script queue/purge: common, queue, leases
-- Deletes rows whose retention is over. ARGV: the maximum number of rows. Returns their number. Keeps what another
-- program has put in the place of a row, and rows that wait or run.
local RETIRED = {finished = true, failed = true, cancelled = true}
local count = 0
for _, key in ipairs(call('ZRANGEBYSCORE', T .. 'purge', '-inf', integer(now), 'LIMIT', 0, tonumber(ARGV[1]))) do
  local status = redis.pcall('HGET', row_of(key), 'status')
  if RETIRED[status] or call('EXISTS', row_of(key)) == 0 then
    delete_row(key)
    count = count + 1
  else
    call('ZREM', T .. 'purge', key)
  end
end
return count
