"""Which rows of the index can be read: those whose values have the types of their columns.

A bit that flips in a record of SQLite can change the type of a value, and SQLite does not mind.
"""

from __future__ import annotations

from milepost.cache.disk.format import KIND_CODES, TOKEN_BYTES

IS_VALID_RUN = f"""(
    typeof(parent) = 'integer' AND typeof(start) = 'integer' AND typeof(first) = 'integer'
    AND typeof(tokens) = 'blob' AND length(tokens) % {TOKEN_BYTES} = 0
)"""
IS_VALID_BLOB = f"""(
    typeof(run) = 'integer' AND typeof(kind) = 'integer'
    AND kind IN ({", ".join(map(str, KIND_CODES.values()))})
    AND typeof(name) = 'text' AND typeof(start) = 'integer' AND typeof("end") = 'integer'
    AND typeof(num_bytes) = 'integer' AND num_bytes >= 0 AND 0 <= start AND start < "end"
    AND typeof(history) = 'blob' AND typeof(checksum) = 'blob'
    AND typeof(last_used_s) = 'real' AND typeof(num_hits) = 'integer'
)"""
IS_VALID_PIN = "(typeof(run) = 'integer' AND typeof(pos) = 'integer' AND typeof(kind) = 'text')"
ROW_CHECKS = {"runs": IS_VALID_RUN, "blobs": IS_VALID_BLOB, "pins": IS_VALID_PIN}
# Those without a whole history.
REMOVE_LOST_RUNS = """
WITH RECURSIVE whole (id) AS (
    SELECT id FROM runs WHERE parent = 0
    UNION ALL SELECT runs.id FROM runs JOIN whole ON runs.parent = whole.id
)
DELETE FROM runs WHERE id NOT IN (SELECT id FROM whole)
"""
