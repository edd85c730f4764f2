package headwater;

import java.io.Serializable;
import java.time.LocalDate;
import java.time.YearMonth;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads records of JSON as rows, straight from their bytes.
 *
 * It knows ordinary records: an object whose fields have their types, without escapes. Whatever else it meets, right or wrong, it leaves to
 * Spark's own from_json, so that both say the same of every record, and to a check of what from_json takes too easily. It keeps nothing between two records.
 */
public final class JsonReader implements Serializable {
    private static final long serialVersionUID = 1L;

    public static final int TEXT = 0;
    public static final int LONG = 1;
    public static final int DOUBLE = 2;
    public static final int BOOLEAN = 3;
    public static final int TIME = 4;
    public static final int OBJECT = 5;

    private final String about;
    private static final UTF8String UNFIT = UTF8String.fromString("unfit");

    private final Expression slow;
    private final Predicate check;
    private final boolean ordinary;
    final byte[][] names;
    final int[] kinds;
    final JsonReader[] objects;
    final int width;

    /**
     * With one column more than it has fields at the end, which is for what from_json says of records that do not fit. The check, if there
     * is one, is asked first: from_json takes records that lose something, and would compute with 1e999999999. No record is ordinary without kinds.
     */
    public JsonReader(String about, UTF8String[] names, int[] kinds, JsonReader[] objects, Expression slow, Predicate check) {
        this.about = about;
        this.slow = slow;
        this.check = check;
        this.ordinary = kinds.length == names.length;
        this.names = new byte[names.length][];
        for (int i = 0; i < names.length; i++) {
            this.names[i] = names[i].getBytes();
        }
        this.kinds = kinds;
        this.objects = objects;
        this.width = slow == null ? names.length : names.length + 1;
    }

    public InternalRow read(byte[] text) {
        InternalRow row = text == null || !ordinary ? null : new JsonCursor(text).record(this);
        if (row != null) {
            return row;
        }
        if (text != null && check != null && !check.test(text)) {
            Object[] values = new Object[width];
            values[width - 1] = UNFIT;
            return new GenericInternalRow(values);
        }
        return (InternalRow) slow.eval(new GenericInternalRow(new Object[] {text}));
    }

    /** The number of a field, or -1; fields mostly come in the order in which they are declared. */
    int find(byte[] text, int start, int end, int expected) {
        if (expected < names.length && same(names[expected], text, start, end)) {
            return expected;
        }
        for (int i = 0; i < names.length; i++) {
            if (same(names[i], text, start, end)) {
                return i;
            }
        }
        return -1;
    }

    private static boolean same(byte[] name, byte[] text, int start, int end) {
        if (name.length != end - start) {
            return false;
        }
        for (int i = 0; i < name.length; i++) {
            if (name[i] != text[start + i]) {
                return false;
            }
        }
        return true;
    }

    /** Its text in Spark's plans, by which a view is recognized. */
    public String toString() {
        return about;
    }
}

/** A place in the text of one record. Methods that return null, ODD or false have met what is not ordinary. */
final class JsonCursor {
    private static final Object ODD = new Object();
    private static final int DEPTH_MAX = 64;
    private static final int DIGITS_MAX = 18;
    /** Spark finds a number of more than 1,000 digits invalid; how it counts them is left to it. */
    private static final int LENGTH_MAX = 500;

    private final byte[] text;
    private int at;
    /** Whether the last string had more than ASCII in it. */
    private boolean foreign;
    /** Whether any string had, also a name or one that is not asked for. */
    private boolean anyForeign;

    JsonCursor(byte[] text) {
        this.text = text;
    }

    InternalRow record(JsonReader of) {
        while (peek() == ' ') {
            at++;
        }
        InternalRow row = peek() == '{' ? object(of) : null;
        space();
        return at == text.length && (!anyForeign || UTF8String.fromBytes(text).isValid()) ? row : null;
    }

    private InternalRow object(JsonReader of) {
        Object[] values = new Object[of.width];
        at++;
        space();
        if (peek() == '}') {
            at++;
            return new GenericInternalRow(values);
        }
        int expected = 0;
        while (true) {
            if (peek() != '"') {
                return null;
            }
            int start = at + 1;
            int end = closing(start);
            if (end < 0) {
                return null;
            }
            int field = of.find(text, start, end, expected);
            at = end + 1;
            space();
            if (peek() != ':') {
                return null;
            }
            at++;
            space();
            if (field < 0) {
                if (!skip(0)) {
                    return null;
                }
            } else {
                Object value = value(of, field);
                if (value == ODD) {
                    return null;
                }
                values[field] = value;
                expected = field + 1;
            }
            space();
            byte next = peek();
            at++;
            if (next == '}') {
                return new GenericInternalRow(values);
            }
            if (next != ',') {
                return null;
            }
            space();
        }
    }

    private Object value(JsonReader of, int field) {
        byte first = peek();
        if (first == 'n') {
            return word("null") ? null : ODD;
        }
        switch (of.kinds[field]) {
        case JsonReader.TEXT:
            return first == '"' ? string() : ODD;
        case JsonReader.LONG:
            return whole();
        case JsonReader.DOUBLE:
            return number();
        case JsonReader.BOOLEAN:
            if (first == 't') {
                return word("true") ? Boolean.TRUE : ODD;
            }
            return word("false") ? Boolean.FALSE : ODD;
        case JsonReader.TIME:
            return first == '"' ? time() : ODD;
        default:
            Object row = first == '{' ? object(of.objects[field]) : null;
            return row != null ? row : ODD;
        }
    }

    private Object string() {
        int start = at + 1;
        int end = closing(start);
        if (end < 0) {
            return ODD;
        }
        at = end + 1;
        UTF8String found = UTF8String.fromBytes(text, start, end - start);
        return !foreign || found.isValid() ? found : ODD;
    }

    /** Where a string ends that begins here, or -1 if it has escapes or characters that JSON forbids. */
    private int closing(int start) {
        foreign = false;
        for (int i = start; i < text.length; i++) {
            byte each = text[i];
            if (each == '"') {
                return i;
            }
            if (each < 0) {
                foreign = true;
                anyForeign = true;
            } else if (each < ' ' || each == '\\') {
                return -1;
            }
        }
        return -1;
    }

    /** Microseconds, of a time that is written as 2026-01-05T09:00:00Z, with up to six digits after its seconds. */
    private Object time() {
        int start = at + 1;
        int end = closing(start);
        if (end - start < 20 || end - start > 27 || text[end - 1] != 'Z' || text[start + 4] != '-' || text[start + 7] != '-'
                || text[start + 10] != 'T' || text[start + 13] != ':' || text[start + 16] != ':') {
            return ODD;
        }
        int year = part(start, 4);
        int month = part(start + 5, 2);
        int day = part(start + 8, 2);
        int hour = part(start + 11, 2);
        int minute = part(start + 14, 2);
        int second = part(start + 17, 2);
        int micros = 0;
        int digits = end - start - 21;
        if (digits >= 0) {
            if (text[start + 19] != '.' || digits == 0) {
                return ODD;
            }
            micros = part(start + 20, digits);
            for (int i = digits; i < 6; i++) {
                micros *= 10;
            }
        }
        if (year < 1 || month < 1 || month > 12 || day < 1 || day > 28 && day > days(year, month)
                || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || micros < 0) {
            return ODD;
        }
        at = end + 1;
        long seconds = LocalDate.of(year, month, day).toEpochDay() * 86400L + hour * 3600 + minute * 60 + second;
        return Long.valueOf(seconds * 1000000L + micros);
    }

    private static int days(int year, int month) {
        return YearMonth.of(year, month).lengthOfMonth();
    }

    /** The number that so many digits make, or less than 0. */
    private int part(int start, int length) {
        int found = 0;
        for (int i = start; i < start + length; i++) {
            if (text[i] < '0' || text[i] > '9') {
                return Integer.MIN_VALUE;
            }
            found = 10 * found + (text[i] - '0');
        }
        return found;
    }

    private Object whole() {
        int start = at;
        boolean negative = peek() == '-';
        if (negative) {
            at++;
        }
        int first = at;
        long found = digits();
        int count = at - first;
        if (count == 0 || count > DIGITS_MAX || count > 1 && text[first] == '0' || !ends()) {
            at = start;
            return ODD;
        }
        return Long.valueOf(negative ? -found : found);
    }

    private Object number() {
        int start = at;
        boolean negative = peek() == '-';
        if (negative) {
            at++;
        }
        int first = at;
        long found = digits();
        int count = at - first;
        if (count == 0 || count > DIGITS_MAX || count > 1 && text[first] == '0') {
            return ODD;
        }
        double value = found;
        if (peek() == '.') {
            at++;
            int point = at;
            digits();
            if (at == point || at - start > LENGTH_MAX) {
                return ODD;
            }
            value = Double.parseDouble(new String(text, 0, first, at - first));
        }
        if (value == 0 && negative || !ends()) {
            return ODD;
        }
        return Double.valueOf(negative ? -value : value);
    }

    /** Passes digits over; their value, if they are few enough. */
    private long digits() {
        long found = 0;
        while (at < text.length && text[at] >= '0' && text[at] <= '9') {
            found = 10 * found + (text[at] - '0');
            at++;
        }
        return found;
    }

    private boolean word(String expected) {
        int length = expected.length();
        if (at + length > text.length) {
            return false;
        }
        for (int i = 0; i < length; i++) {
            if (text[at + i] != expected.charAt(i)) {
                return false;
            }
        }
        at += length;
        return ends();
    }

    /** Whether a number or a word may end here. */
    private boolean ends() {
        byte next = peek();
        return next == ',' || next == '}' || next == ']' || next == ' ' || next == '\n' || next == '\r' || next == '\t';
    }

    /** Passes over a value of a field that is not asked for. */
    private boolean skip(int depth) {
        byte first = peek();
        if (first == '"') {
            int end = closing(at + 1);
            at = end + 1;
            return end >= 0;
        }
        if (first == 't') {
            return word("true");
        }
        if (first == 'f') {
            return word("false");
        }
        if (first == 'n') {
            return word("null");
        }
        if (first == '{' || first == '[') {
            return depth < DEPTH_MAX && skipInside(first == '{', depth + 1);
        }
        return number() != ODD;
    }

    private boolean skipInside(boolean named, int depth) {
        byte last = (byte) (named ? '}' : ']');
        at++;
        space();
        if (peek() == last) {
            at++;
            return true;
        }
        while (true) {
            if (named) {
                if (peek() != '"' || !skip(depth)) {
                    return false;
                }
                space();
                if (peek() != ':') {
                    return false;
                }
                at++;
                space();
            }
            if (!skip(depth)) {
                return false;
            }
            space();
            byte next = peek();
            at++;
            if (next == last) {
                return true;
            }
            if (next != ',') {
                return false;
            }
            space();
        }
    }

    private void space() {
        byte next = peek();
        while (next == ' ' || next == '\n' || next == '\r' || next == '\t') {
            at++;
            next = peek();
        }
    }

    /** The next byte, or 0 at the end. */
    private byte peek() {
        return at < text.length ? text[at] : (byte) 0;
    }
}
