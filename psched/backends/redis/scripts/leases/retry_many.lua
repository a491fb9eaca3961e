-- Makes leased rows due later. ARGV: for each row its key, lease, the wait in milliseconds, 1 when this attempt does not
-- count (else 0), the version because of which it waits (or '') and the error ('' for none).
-- Returns for each {'done'}, or why not.
local answers = {}
for place = 1, #ARGV, 6 do
  local key, problem = ARGV[place], ARGV[place + 5]
  local row = row_of(key)
  local answer = refusal(row, ARGV[place + 1])
  if not answer then
    insist(row)
    call('HSET', row, 'crashes', '0')
    if ARGV[place + 3] == '1' then
      grow(row, 'attempts', -1)
    end
    if problem ~= '' then
      call('HSET', row, 'last_error', problem)
    end
    settle(key, now + wait_of(row, ARGV[place + 2], ARGV[place + 4]), ending(row, ARGV[place + 1], 'retried'))
    answer = {'done'}
  end
  answers[#answers + 1] = answer
end
return answers
