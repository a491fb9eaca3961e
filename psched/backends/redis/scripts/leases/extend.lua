-- Renews leases. ARGV: the lease in milliseconds, 1 when the runs are to be recorded as begun (else 0), then keys and leases.
-- Returns for each its end, whether its run was to be cancelled, and whether its schedule is paused; nothing where it is lost.
local ends, renewed = now + tonumber(ARGV[1]), {}
for place = 3, #ARGV, 2 do
  local row = row_of(ARGV[place])
  if refusal(row, ARGV[place + 1]) then
    renewed[#renewed + 1] = false
  else
    insist(row)
    renew(ARGV[place], ends, ARGV[2] == '1')
    local is = call('HMGET', row, 'cancel_requested', 'paused_from', 'paused_until')
    renewed[#renewed + 1] = {whole(ends), is[1] or '0', is[2] and not is[3] and '1' or '0'}
  end
end
return renewed
