-- Deletes a row, leased or not. ARGV: key. Returns 1; 0 when there is none.
if call('EXISTS', row_of(ARGV[1])) == 0 then
  return 0
end
remove(ARGV[1])
return 1
