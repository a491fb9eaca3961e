-- Deletes a row, leased or not. ARGV: key, nonce. Returns 1; 0 when there is none, or one that another call created.
if call('EXISTS', row_of(ARGV[1])) == 0 or nonce_of(row_of(ARGV[1])) ~= ARGV[2] then
  return 0
end
remove(ARGV[1])
return 1
