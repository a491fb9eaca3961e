-- Creates the rows that stand in ARGV from `first` on: a nonce, then for each row key, type, data, run_at ('' for now),
-- user, max_running (or ''), priority and max_attempts (or ''). Returns the keys that exist, but for those that a call
-- with this very nonce has written.
local function submit(first)
  local nonce, present, news = ARGV[first], {}, 0
  for place = first + 1, #ARGV, 8 do
    local key, row = ARGV[place], row_of(ARGV[place])
    if call('EXISTS', row) == 1 then
      if call('HGET', row, 'nonce') ~= nonce then
        present[#present + 1] = key
      end
    else
      local run_at = ARGV[place + 3] == '' and whole(now) or ARGV[place + 3]
      call('HSET', row, 'type', ARGV[place + 1], 'data', ARGV[place + 2], 'run_at', run_at, 'user', ARGV[place + 4],
        'priority', ARGV[place + 6], 'nonce', nonce, 'fence', first_fence(T), 'attempts', '0', 'crashes', '0',
        'cancel_requested', '0', 'created', whole(now))
      if ARGV[place + 5] ~= '' then
        call('HSET', row, 'max_running', ARGV[place + 5])
      end
      if ARGV[place + 7] ~= '' then
        call('HSET', row, 'max_attempts', ARGV[place + 7])
      end
      call('ZADD', T .. 'keys', 0, key)
      wait(key, tonumber(run_at))
      news = news + 1
    end
  end
  ring(T, news)
  return present
end
