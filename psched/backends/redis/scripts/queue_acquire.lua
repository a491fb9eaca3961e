--- script queue/acquire: common, queue, leases
-- Leases rows, one after another. Each goes to the user with the greatest weight; among equal weights, to the user who
-- has waited longest. A weight is max_running (or 1) divided by the number of runs that the user would then have. A
-- prefetch takes at most half of a user's room, so that other workers can run the rest. A user who gets no row because
-- the batch is full by bytes comes first at the next acquire.
-- ARGV: the maximum number of rows, the lease in milliseconds, 1 if the runs start later (else 0), holder, number of
-- this acquire, spans of acquires to undo (a list), types (a list; -1 for any).
-- Returns pairs of key and claim_fields. For an unreadable row, returns {key, {}}, or {key, {}, 'run'} if it was
-- running.
local WINDOW = 64  -- users compared at once: those who have waited longest
local ROUNDS = 4  -- windows of users that are examined if the users of a window have no room
local MAX_CUT_OFF = 64  -- the maximum number of users who come first because they were cut off
local CUT_OFF_EXPIRY = 60000  -- milliseconds after which a cut-off user no longer comes first
local MAX_MOVED = 200  -- rows moved at once from `later:` to their lines, at most; `limit` if that is more

local limit, ahead, holder, number = tonumber(ARGV[1]), ARGV[3] == '1', ARGV[4], ARGV[5]
local ends = now + tonumber(ARGV[2])
local undone, place = read_list(6)
local types = read_list(place)
if ARGV[place] == '-1' then
  types = {''}
end

local unreadable = {}  -- keys that are not hashes, and runs without a hash

-- Returns the keys of a sorted set up to now, and whether there may be more. Removes keys without a valid row from the
-- set, except lost runs: these stay in `leases:` until `remove_lost_runs` has given their users the room back.
local function due_keys(set, status)
  local most = math.max(MAX_MOVED, limit)
  local found = call('ZRANGEBYSCORE', set, '-inf', integer(now), 'LIMIT', 0, most)
  local keys = {}
  for _, key in ipairs(found) do
    local found_status = redis.pcall('HGET', row_of(key), 'status')
    if found_status == status then
      keys[#keys + 1] = key
    else
      if set == T .. 'leases:' then
        unreadable[#unreadable + 1] = {key, {}, 'run'}
      elseif type(found_status) == 'table' then
        unreadable[#unreadable + 1] = {key, {}}
      end
      if set ~= T .. 'leases:' then
        call('ZREM', set, key)
      end
    end
  end
  return keys, #found == most
end

-- Ends expired leases and raises their fences, so that their holders cannot settle. Returns whether there may be more.
local function expire_leases(type)
  local expired, more = due_keys(T .. 'leases:' .. type, 'running')
  for _, key in ipairs(expired) do
    local _, _, _, due = facts_of(key)
    increment(row_of(key), 'fence', 1)
    uncount_unstarted(row_of(key))
    call('HSET', row_of(key), 'taken_ahead', '3')
    release_lease(key)
    make_waiting(key, due)
  end
  return more
end

-- Moves due rows to their lines. Returns whether there may be more.
local function enqueue_due(type)
  local due_now, more = due_keys(T .. 'later:' .. type, 'waiting')
  for _, key in ipairs(due_now) do
    local kind, user, priority, due = facts_of(key)
    remove_from_sets('later', key, kind)
    add_to_lines(key, kind, user, priority, due)
  end
  return more
end

-- Ends expired leases and moves due rows of these types. Returns whether there may be more.
local function move_rows(wanted)
  local more = false
  for _, type in ipairs(wanted) do
    more = expire_leases(type) or more
    more = enqueue_due(type) or more
  end
  return more
end

-- Returns a line that is read in growing parts.
local function open_line(type, user)
  return {type = type, line = line_of(type, user), at = 0, read = {}, size = 1}
end

-- Returns the next row of a line and its score.
local function head_of(line)
  if line.at * 2 == #line.read and not line.ended then
    local found = call('ZRANGE', line.line, line.at, line.at + line.size - 1, 'WITHSCORES')
    for _, value in ipairs(found) do
      line.read[#line.read + 1] = value
    end
    line.ended = #found < line.size * 2
    line.size = line.size * 4
  end
  return line.read[line.at * 2 + 1], tonumber(line.read[line.at * 2 + 2])
end

local function least(one, other)
  return one and other and math.min(one, other) or one or other
end

local taken, rows, blocked = {}, {}, {}
local had = {}  -- rows of each user that this acquire has leased

-- Records that a user's row leaves its lines at the end of this round.
local function take_from_line(user, type)
  taken[#taken + 1] = {key = user.key, user = user.name, type = type}
  user.line.at = user.line.at + 1
end

-- Finds the next row of a user, and the user's weight.
local function find_next(user)
  user.key, user.weight = nil, nil
  local first
  for _, line in ipairs(user.lines) do
    local key, score = head_of(line)
    if key and (not first or score < first) then
      first, user.key, user.line = score, key, line
    end
  end
  if not user.key then
    return
  end
  local fields = redis.pcall('HMGET', row_of(user.key), 'max_running', 'type', 'status', 'size')
  if fields.err then
    unreadable[#unreadable + 1] = {user.key, {}}
  end
  if fields[3] ~= 'waiting' then  -- another program has deleted or replaced the row
    take_from_line(user, user.line.type)
    return find_next(user)
  end
  user.limit, user.type, user.size = limit_of(fields[1]), fields[2] or '', size_of(fields[4])
  local most = least(user.most, user.limit)
  if most and user.running >= most then
    blocked[#blocked + 1] = {type = user.line.type, user = user.name}
    user.line.read, user.line.at, user.line.ended = {}, 0, true
    return find_next(user)
  end
  local count = had[user.name] or 0
  if not most or count == 0 or count < math.floor((most - user.running + count) / 2) then
    user.weight = (most or 1) / (user.running + 1)
  end
end

local was_first = {}  -- users in `cut_off` whom this acquire puts first

-- Returns the users who were cut off by an earlier acquire and have got no row since, in that order.
local function cut_off_before()
  local found = redis.pcall('ZRANGE', T .. 'cut_off', 0, MAX_CUT_OFF - 1)
  if found.err then  -- the key has another type
    call('DEL', T .. 'cut_off')
    return {}
  end
  return found
end

-- Returns a window of users for each type, and whether there may be more users.
local function candidates()
  local users, by_name = {}, {}
  local some, full = earliest_types(types, 'turn:')
  local function add_candidate(type, name, due)
    local user = by_name[name]
    if not user then
      user = {name = name, due = due, place = #users, lines = {}, running = call('ZCARD', T .. 'run:' .. name)}
      local most = tonumber(call('ZRANGE', T .. 'run:' .. name, 0, 0, 'WITHSCORES')[2])
      user.most = most and most < math.huge and most or nil
      by_name[name], users[#users + 1] = user, user
    end
    user.due = math.min(user.due, due)
    user.lines[#user.lines + 1] = open_line(type, name)
  end
  for _, type in ipairs(some) do
    local found = call('ZRANGE', T .. 'turn:' .. type, 0, WINDOW - 1, 'WITHSCORES')
    full = full or #found == WINDOW * 2
    for at = 1, #found, 2 do
      add_candidate(type, found[at], tonumber(found[at + 1]))
    end
  end
  local has_users = #users > 1 or (users[1] and users[1].name ~= '')  -- a single user cannot be cut off by others
  for place, name in ipairs(has_users and cut_off_before() or {}) do
    if full and not by_name[name] then
      for _, type in ipairs(some) do
        local due = call('ZSCORE', T .. 'turn:' .. type, name)
        if due then
          add_candidate(type, name, tonumber(due))
        end
      end
    end
    if by_name[name] and not had[name] then
      by_name[name].first, was_first[name] = place, true
    end
  end
  if #some > 1 then
    table.sort(users, function(one, other)
      return one.due < other.due or (one.due == other.due and one.place < other.place)
    end)
  end
  for _, user in ipairs(users) do
    find_next(user)
  end
  return users, full
end

local function goes_before(one, other)
  if one.first or other.first then
    return one.first ~= nil and (other.first == nil or one.first < other.first)
  end
  return one.weight > other.weight
end

local function next_user(users)
  local best
  for _, user in ipairs(users) do
    if user.weight and (not best or goes_before(user, best)) then
      best = user
    end
  end
  return best
end

local bytes = 0  -- bytes of data of the leased rows
local cut, is_cut = {}, false  -- users who got no row; whether the batch was full by bytes

-- Leases rows of these users, one after another.
local function lease_rows(users)
  while #rows < limit do
    local user = next_user(users)
    if not user then
      return
    end
    if #rows > 0 and bytes + user.size > MAX_BATCH_BYTES then
      user.weight, is_cut = nil, true
      if not had[user.name] then
        cut[#cut + 1] = user.name
      end
    else
      lease_row(user.key, ends, ahead, holder, number)
      rows[#rows + 1] = {user.key, claim_fields(user.key)}
      take_from_line(user, user.type)
      bytes = bytes + user.size
      user.running = user.running + 1
      had[user.name] = (had[user.name] or 0) + 1
      user.most, user.first = least(user.most, user.limit), nil
      if #rows < limit then
        find_next(user)
      end
    end
  end
end

-- Stores the users who were cut off for the next acquire. Removes users who got a row.
local function save_cut_off()
  for name in pairs(was_first) do
    if had[name] then
      call('ZREM', T .. 'cut_off', name)
    end
  end
  if #cut > 0 then
    call('ZREMRANGEBYSCORE', T .. 'cut_off', '-inf', integer((now - CUT_OFF_EXPIRY) * 1000))
    -- An earlier acquire may have run in the same millisecond.
    local last = tonumber(call('ZRANGE', T .. 'cut_off', -1, -1, 'WITHSCORES')[2]) or 0
    local score = math.max(now * 1000, last)
    for place, name in ipairs(cut) do
      call('ZADD', T .. 'cut_off', 'NX', integer(score + place), name)
    end
    call('PEXPIRE', T .. 'cut_off', CUT_OFF_EXPIRY)
  end
end

-- Removes leased rows from their lines, and updates the turns.
local function update_lines()
  local touched = {}
  for _, row in ipairs(taken) do
    for _, type in ipairs({'', row.type}) do
      local line = line_of(type, row.user)
      call('ZREM', line, row.key)
      touched[line] = {type = type, user = row.user}
    end
  end
  for _, line in pairs(touched) do
    update_turn(line.type, line.user)
  end
  for _, line in ipairs(blocked) do
    block_user(line.type, line.user)
  end
  taken, blocked = {}, {}
end

-- Leases rows until there are enough, or no user has another row.
local function fill_batch()
  for _ = 1, ROUNDS do
    local users, full = candidates()
    lease_rows(users)
    update_lines()
    if #rows >= limit or is_cut or not full then
      break
    end
  end
end

undo_acquires(holder, undone)
-- Rows of all types are moved at once. Expired runs of other types use room of the same users.
local has_more = move_rows({''})
types = types_with_rows(types)  -- now, because a moved row may be the first of its type
if has_more and types[1] ~= '' then
  move_rows(types)
end
fill_batch()
if #rows == 0 and types[1] ~= '' and not has_more then
  move_rows(types)  -- a set of one type may have keys without a row, which would be due for ever
  fill_batch()
end
save_cut_off()
for _, row in ipairs(unreadable) do
  rows[#rows + 1] = row
end
return rows

--- script queue/next_due: common, queue, leases
-- An expired run of any type may still block other rows of its user. Only an acquire finds out.
local ended = call('ZRANGE', T .. 'leases:', 0, 0, 'WITHSCORES')[2]
return ended and tonumber(ended) <= now and '0' or least_wait()

--- script queue/due_by_type: common, queue, leases
-- Returns each type with tasks that have not ended, followed by the milliseconds until its earliest row is due. If
-- there is an expired run, all types are due now, because that run may still block other rows of its user.
local MAX_EXPIRED = 1000  -- the maximum number of expired runs whose users are examined

local ended = call('ZRANGEBYSCORE', T .. 'leases:', '-inf', integer(now), 'LIMIT', 0, MAX_EXPIRED)
local found = due_by_type(#ended > 0)

-- Rows that an expired run blocks are in none of the sets above.
local listed = {['']=true}
for place = 1, #found, 2 do
  listed[found[place]] = true
end
for _, key in ipairs(ended) do
  local user = redis.pcall('HGET', row_of(key), 'user')
  local types = type(user) == 'string' and call('SMEMBERS', T .. 'blocked:' .. user) or {}
  for _, kind in ipairs(types) do
    if not listed[kind] then
      listed[kind] = true
      found[#found + 1], found[#found + 2] = kind, '0'
    end
  end
end
return found
