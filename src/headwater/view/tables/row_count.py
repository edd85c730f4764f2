"""The number of rows in the table of a view, stored with them so that no reader has to count.

    size     one line: rows (without deleted keys)

Triggers maintain it, so it is right whatever version of the program writes the file.
"""

__all__ = ["CREATE"]

CREATE = """
CREATE TABLE IF NOT EXISTS size (rows INTEGER NOT NULL);
INSERT INTO size
    SELECT (SELECT count(*) FROM row WHERE value IS NOT NULL) WHERE NOT EXISTS (SELECT 1 FROM size);
CREATE TRIGGER IF NOT EXISTS row_added AFTER INSERT ON row WHEN NEW.value IS NOT NULL
    BEGIN UPDATE size SET rows = rows + 1; END;
CREATE TRIGGER IF NOT EXISTS row_changed AFTER UPDATE ON row WHEN (NEW.value IS NULL) <> (OLD.value IS NULL)
    BEGIN UPDATE size SET rows = rows + CASE WHEN NEW.value IS NULL THEN -1 ELSE 1 END; END;
CREATE TRIGGER IF NOT EXISTS row_removed AFTER DELETE ON row WHEN OLD.value IS NOT NULL
    BEGIN UPDATE size SET rows = rows - 1; END;
"""
