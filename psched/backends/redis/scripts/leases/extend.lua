-- Renews leases. ARGV: the lease in milliseconds, then keys and leases. Returns for each its end and whether its run was to
-- be cancelled; nothing where it is lost.
local ends, renewed = now + tonumber(ARGV[1]), {}
for place = 2, #ARGV, 2 do
  local row = row_of(ARGV[place])
  if refusal(row, ARGV[place + 1]) then
    renewed[#renewed + 1] = false
  else
    insist(row)
    renew(ARGV[place], ends)
    renewed[#renewed + 1] = {whole(ends), call('HGET', row, 'cancel_requested') or '0'}
  end
end
return renewed
