package headwater;

import java.io.Serializable;
import java.time.LocalDate;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes rows as JSON, straight into bytes. What is not ordinary, such as text that is not UTF-8 or a year of five digits, it leaves to Spark's own
 * to_json, so that both write the same. It keeps nothing between two rows but a guess at how long the next one will be.
 */
public final class JsonWriter implements Serializable {
    private static final long serialVersionUID = 1L;

    public static final int TEXT = 0;
    public static final int LONG = 1;
    public static final int DOUBLE = 2;
    public static final int BOOLEAN = 3;
    public static final int TIME = 4;
    public static final int OBJECT = 5;
    public static final int INT = 6;

    private final String about;
    private final Expression slow;
    final byte[][] heads;
    final int[] kinds;
    final JsonWriter[] objects;
    private transient int length;

    /** The heads are what is written before each value: a brace or a comma, and the name of its column. */
    public JsonWriter(String about, UTF8String[] heads, int[] kinds, JsonWriter[] objects, Expression slow) {
        this.about = about;
        this.slow = slow;
        this.heads = new byte[heads.length][];
        for (int i = 0; i < heads.length; i++) {
            this.heads[i] = heads[i].getBytes();
        }
        this.kinds = kinds;
        this.objects = objects;
    }

    public UTF8String write(InternalRow row) {
        JsonBuffer out = new JsonBuffer(length + 64);
        if (!out.object(this, row)) {
            return (UTF8String) slow.eval(new GenericInternalRow(new Object[] {row}));
        }
        length = out.at;
        return UTF8String.fromBytes(out.bytes, 0, out.at);
    }

    /** Its text in Spark's plans, by which a view is recognized. */
    public String toString() {
        return about;
    }
}

/** The text of one row. Methods that return false have met what is not ordinary. */
final class JsonBuffer {
    private static final byte[] HEX = "0123456789ABCDEF".getBytes();
    private static final byte[] NULL = "null".getBytes();
    private static final byte[] TRUE = "true".getBytes();
    private static final byte[] FALSE = "false".getBytes();
    private static final byte[] NOTHING = "{}".getBytes();
    private static final long DAY_MICROS = 86400000000L;
    /** From the year 1 to the year 9999. */
    private static final long DAY_MIN = -719162L;
    private static final long DAY_MAX = 2932896L;

    byte[] bytes;
    int at;

    JsonBuffer(int length) {
        this.bytes = new byte[length];
    }

    boolean object(JsonWriter of, InternalRow row) {
        if (of.kinds.length == 0) {
            put(NOTHING);
            return true;
        }
        for (int i = 0; i < of.kinds.length; i++) {
            put(of.heads[i]);
            if (row.isNullAt(i)) {
                put(NULL);
            } else if (!value(of, row, i)) {
                return false;
            }
        }
        put('}');
        return true;
    }

    private boolean value(JsonWriter of, InternalRow row, int field) {
        switch (of.kinds[field]) {
        case JsonWriter.TEXT:
            return text(row.getUTF8String(field));
        case JsonWriter.LONG:
            whole(row.getLong(field));
            return true;
        case JsonWriter.INT:
            whole(row.getInt(field));
            return true;
        case JsonWriter.DOUBLE:
            number(row.getDouble(field));
            return true;
        case JsonWriter.BOOLEAN:
            put(row.getBoolean(field) ? TRUE : FALSE);
            return true;
        case JsonWriter.TIME:
            return time(row.getLong(field));
        default:
            JsonWriter inner = of.objects[field];
            return object(inner, row.getStruct(field, inner.kinds.length));
        }
    }

    private boolean text(UTF8String text) {
        int length = text.numBytes();
        room(length + 2);
        bytes[at] = '"';
        text.writeToMemory(bytes, Platform.BYTE_ARRAY_OFFSET + at + 1);
        boolean foreign = false;
        for (int i = at + 1; i <= at + length; i++) {
            byte each = bytes[i];
            if (each < 0) {
                foreign = true;
            } else if (each < ' ' || each == '"' || each == '\\') {
                return text.isValid() && escaped(text.getBytes());
            }
        }
        if (foreign && !text.isValid()) {
            return false;
        }
        at += length + 1;
        bytes[at++] = '"';
        return true;
    }

    private boolean escaped(byte[] text) {
        room(6 * text.length + 2);
        bytes[at++] = '"';
        for (int i = 0; i < text.length; i++) {
            byte each = text[i];
            if (each == '"' || each == '\\') {
                escape(each);
            } else if (each < 0 || each >= ' ') {
                bytes[at++] = each;
            } else if (each == '\b') {
                escape((byte) 'b');
            } else if (each == '\t') {
                escape((byte) 't');
            } else if (each == '\n') {
                escape((byte) 'n');
            } else if (each == '\f') {
                escape((byte) 'f');
            } else if (each == '\r') {
                escape((byte) 'r');
            } else {
                escape((byte) 'u');
                bytes[at++] = '0';
                bytes[at++] = '0';
                bytes[at++] = HEX[each >> 4];
                bytes[at++] = HEX[each & 15];
            }
        }
        bytes[at++] = '"';
        return true;
    }

    private void escape(byte what) {
        bytes[at++] = '\\';
        bytes[at++] = what;
    }

    private void whole(long value) {
        if (value == Long.MIN_VALUE) {
            put(Long.toString(value).getBytes());
            return;
        }
        room(20);
        if (value < 0) {
            bytes[at++] = '-';
            value = -value;
        }
        int count = 1;
        for (long rest = value / 10; rest > 0; rest /= 10) {
            count++;
        }
        digits(value, count);
    }

    private void digits(long value, int count) {
        for (int i = at + count - 1; i >= at; i--) {
            bytes[i] = (byte) ('0' + value % 10);
            value /= 10;
        }
        at += count;
    }

    private void number(double value) {
        boolean quoted = Double.isNaN(value) || Double.isInfinite(value);
        if (quoted) {
            put('"');
        }
        put(Double.toString(value).getBytes());
        if (quoted) {
            put('"');
        }
    }

    /** As 2026-01-05T09:00:00.000000Z, in quotes. */
    private boolean time(long micros) {
        long day = Math.floorDiv(micros, DAY_MICROS);
        if (day < DAY_MIN || day > DAY_MAX) {
            return false;
        }
        long rest = micros - day * DAY_MICROS;
        long seconds = rest / 1000000L;
        LocalDate date = LocalDate.ofEpochDay(day);
        room(29);
        bytes[at++] = '"';
        digits(date.getYear(), 4);
        bytes[at++] = '-';
        digits(date.getMonthValue(), 2);
        bytes[at++] = '-';
        digits(date.getDayOfMonth(), 2);
        bytes[at++] = 'T';
        digits(seconds / 3600, 2);
        bytes[at++] = ':';
        digits(seconds / 60 % 60, 2);
        bytes[at++] = ':';
        digits(seconds % 60, 2);
        bytes[at++] = '.';
        digits(rest % 1000000L, 6);
        bytes[at++] = 'Z';
        bytes[at++] = '"';
        return true;
    }

    private void put(char one) {
        room(1);
        bytes[at++] = (byte) one;
    }

    private void put(byte[] some) {
        room(some.length);
        System.arraycopy(some, 0, bytes, at, some.length);
        at += some.length;
    }

    private void room(int more) {
        if (at + more > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, at + more));
        }
    }
}
