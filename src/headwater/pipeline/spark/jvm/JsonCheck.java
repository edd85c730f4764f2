package headwater;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Whether a record is one JSON object whose fields have their types, to the last digit.
 *
 * Spark's from_json rounds decimals, replaces what is not text, takes NaN, lists with nulls, and times without a zone. This says of every
 * record what declare/judge.py says in Python, so that views and sinks judge alike; tests compare the two.
 */
public final class JsonCheck implements Predicate, Serializable {
    private static final long serialVersionUID = 1L;

    private static final JsonFactory FACTORY = new JsonFactory();
    private static final Pattern DATE = Pattern.compile("(\\d{4})-(\\d{2})-(\\d{2})");
    private static final Pattern TIME = Pattern.compile(
            "(\\d{4})-(\\d{2})-(\\d{2})[T ](\\d{2}):(\\d{2}):(\\d{2})(?:\\.\\d{1,9})?(Z|([+-])(\\d{2})(?::?(\\d{2}))?)?");
    private static final Pattern NUMBER = Pattern.compile("[+-]?(?:\\d+(?:\\.\\d*)?|\\.\\d+)(?:[eE][+-]?\\d{1,3})?");
    private static final Pattern BASE64 = Pattern.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?");
    private static final int NUMBER_MAX = 1000;
    private static final long DAY_MINUTES = 24 * 60;
    private static final int ZONE_MINUTES_MAX = 18 * 60;

    private final String kind;
    private final boolean nullable;
    private final boolean required;
    private final boolean lenient;
    private final int precision;
    private final int scale;
    private final JsonCheck item;
    private final String[] names;
    private final JsonCheck[] fields;

    /** The type of a record, as declare/field_types.py writes it. */
    public JsonCheck(String spec) throws IOException {
        this((JsonNode) new ObjectMapper().readTree(spec));
    }

    private JsonCheck(JsonNode spec) {
        kind = part(spec, "kind").asText();
        nullable = part(spec, "nullable").asBoolean();
        required = part(spec, "required").asBoolean();
        lenient = part(spec, "lenient").asBoolean();
        precision = part(spec, "precision").asInt();
        scale = part(spec, "scale").asInt();
        item = part(spec, "item").isObject() ? new JsonCheck(part(spec, "item")) : null;
        JsonNode parts = part(spec, "fields");
        names = new String[parts.size()];
        fields = new JsonCheck[parts.size()];
        for (int i = 0; i < names.length; i++) {
            JsonNode field = (JsonNode) parts.get(i);
            names[i] = part(field, "name").asText();
            fields[i] = new JsonCheck(field);
        }
    }

    private static JsonNode part(JsonNode spec, String name) {
        return (JsonNode) spec.path(name);
    }

    public boolean test(Object record) {
        UTF8String bytes = UTF8String.fromBytes((byte[]) record);
        if (!bytes.isValid()) {
            return false;
        }
        String text = bytes.toString();
        int start = 0;
        while (start < text.length() && text.charAt(start) == ' ') {
            start++;
        }
        if (start == text.length() || text.charAt(start) != '{') {
            return false;
        }
        JsonParser parser = null;
        try {
            parser = FACTORY.createParser(text);
            parser.nextToken();
            return object(parser) && parser.nextToken() == null;
        } catch (IOException error) {
            return false;
        } finally {
            try {
                if (parser != null) {
                    parser.close();
                }
            } catch (IOException error) {
                return false;
            }
        }
    }

    private boolean object(JsonParser parser) throws IOException {
        boolean[] found = new boolean[names.length];
        while (parser.nextToken() != JsonToken.END_OBJECT) {
            int field = find(parser.getCurrentName());
            parser.nextToken();
            if (field < 0) {
                parser.skipChildren();
            } else {
                if (!fields[field].value(parser)) {
                    return false;
                }
                found[field] = true;
            }
        }
        for (int i = 0; i < found.length; i++) {
            if (!found[i] && fields[i].required) {
                return false;
            }
        }
        return true;
    }

    private int find(String name) {
        for (int i = 0; i < names.length; i++) {
            if (names[i].equals(name)) {
                return i;
            }
        }
        return -1;
    }

    private boolean value(JsonParser parser) throws IOException {
        JsonToken token = parser.getCurrentToken();
        if (token == JsonToken.VALUE_NULL) {
            return nullable;
        }
        if (kind.equals("STRUCT")) {
            return token == JsonToken.START_OBJECT && object(parser);
        }
        if (kind.equals("ARRAY")) {
            return token == JsonToken.START_ARRAY && array(parser);
        }
        if (token == JsonToken.START_OBJECT || token == JsonToken.START_ARRAY) {
            parser.skipChildren();
            return kind.equals("STRING");
        }
        if (kind.equals("BOOLEAN")) {
            return token == JsonToken.VALUE_TRUE || token == JsonToken.VALUE_FALSE;
        }
        return scalar(token, parser.getText());
    }

    private boolean array(JsonParser parser) throws IOException {
        while (parser.nextToken() != JsonToken.END_ARRAY) {
            if (!item.value(parser)) {
                return false;
            }
        }
        return true;
    }

    private boolean scalar(JsonToken token, String text) {
        boolean string = token == JsonToken.VALUE_STRING;
        boolean whole = token == JsonToken.VALUE_NUMBER_INT;
        boolean number = whole || token == JsonToken.VALUE_NUMBER_FLOAT;
        if (kind.equals("STRING")) {
            return !string || isText(text);
        }
        if (kind.equals("BIGINT")) {
            return whole && isLong(text);
        }
        if (kind.equals("DOUBLE")) {
            return number ? !Double.isInfinite(Double.parseDouble(text))
                    : string && lenient && (text.equals("NaN") || text.equals("Infinity") || text.equals("-Infinity"));
        }
        if (kind.equals("DECIMAL")) {
            return (number || string) && isDecimal(text);
        }
        if (kind.equals("TIMESTAMP")) {
            return string && isTime(text);
        }
        if (kind.equals("DATE")) {
            return string ? isDate(DATE.matcher(text)) : whole && lenient && isDay(text);
        }
        return string && BASE64.matcher(text).matches();
    }

    private static boolean isText(String text) {
        for (int i = 0; i < text.length(); i++) {
            char each = text.charAt(i);
            if (Character.isHighSurrogate(each)) {
                i++;
                if (i == text.length() || !Character.isLowSurrogate(text.charAt(i))) {
                    return false;
                }
            } else if (Character.isLowSurrogate(each)) {
                return false;
            }
        }
        return true;
    }

    private static boolean isLong(String text) {
        try {
            Long.parseLong(text);
            return true;
        } catch (NumberFormatException error) {
            return false;
        }
    }

    private boolean isDecimal(String text) {
        if (text.length() > NUMBER_MAX || !NUMBER.matcher(text).matches()) {
            return false;
        }
        BigDecimal found = new BigDecimal(text).stripTrailingZeros();
        return found.signum() == 0 || found.scale() <= scale && found.precision() - found.scale() <= precision - scale;
    }

    private static boolean isDate(Matcher found) {
        return found.matches() && day(found) != null;
    }

    private static LocalDate day(Matcher found) {
        int year = Integer.parseInt(found.group(1));
        try {
            return year < 1 ? null : LocalDate.of(year, Integer.parseInt(found.group(2)), Integer.parseInt(found.group(3)));
        } catch (DateTimeException error) {
            return null;
        }
    }

    /** A number of days since 1970, in the years 1 to 9999. */
    private static boolean isDay(String text) {
        if (!isLong(text)) {
            return false;
        }
        long days = Long.parseLong(text);
        return days >= LocalDate.of(1, 1, 1).toEpochDay() && days <= LocalDate.of(9999, 12, 31).toEpochDay();
    }

    private boolean isTime(String text) {
        Matcher found = TIME.matcher(text);
        LocalDate day = found.matches() ? day(found) : null;
        if (day == null || found.group(7) == null && !lenient) {
            return false;
        }
        int hour = Integer.parseInt(found.group(4));
        int minute = Integer.parseInt(found.group(5));
        int second = Integer.parseInt(found.group(6));
        int zone = 0;
        if (found.group(8) != null) {
            int minutes = found.group(10) == null ? 0 : Integer.parseInt(found.group(10));
            zone = 60 * Integer.parseInt(found.group(9)) + minutes;
            if (minutes > 59 || zone > ZONE_MINUTES_MAX) {
                return false;
            }
            zone = found.group(8).equals("-") ? -zone : zone;
        }
        long minutes = day.toEpochDay() * DAY_MINUTES + 60 * hour + minute - zone;
        long first = LocalDate.of(1, 1, 1).toEpochDay() * DAY_MINUTES;
        long end = (LocalDate.of(9999, 12, 31).toEpochDay() + 1) * DAY_MINUTES;
        return hour < 24 && minute < 60 && second < 60 && minutes >= first && minutes < end;
    }
}
