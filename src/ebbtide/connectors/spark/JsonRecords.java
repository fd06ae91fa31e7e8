package ebbtide;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.Arrays;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the fields of a JSON record from its bytes, if they are certain to be what Spark's from_json gives.
 *
 * Anything unusual, such as an odd number, a time in another form or a broken record, gives null, and Spark
 * decodes that record itself (docs/adr/031). Janino, which Spark brings, compiles this: no lambdas, few generics.
 */
public final class JsonRecords implements Serializable {

    private static final long serialVersionUID = 1L;

    public static final int STRING = 0, TINYINT = 1, SMALLINT = 2, INT = 3, BIGINT = 4, DOUBLE = 5, BOOLEAN = 6, TIMESTAMP = 7;

    /** Jackson refuses numbers of more than 1,000 digits and names of more than 50,000 characters. */
    private static final int LONGEST_RECORD = 50000, LONGEST_NUMBER = 200;
    /** And more than 1,000 nested values. */
    private static final int DEEPEST = 200;
    private static final int SECONDS = "2025-09-04T07:00:00".length(), OFFSET = "+02:00".length();
    private static final double[] POWERS = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

    private final byte[][] names;
    private final int[] kinds;
    private final int required;
    private final ZoneId zone;
    private final boolean isUtc;

    /** The fields to read, which of them must not be null, and the zone of times without one. */
    public JsonRecords(String[] names, int[] kinds, int required, ZoneId zone) {
        this.names = new byte[names.length][];
        for (int i = 0; i < names.length; i++) {
            this.names[i] = names[i].getBytes(StandardCharsets.UTF_8);
        }
        this.kinds = kinds;
        this.required = required;
        this.zone = zone;
        this.isUtc = zone.normalized().equals(ZoneOffset.UTC);
    }

    /** The fields of a record, or null if Spark must decode it. */
    public InternalRow read(byte[] record) {
        int size = record.length;
        if (size < 2 || size >= LONGEST_RECORD || record[0] != '{' || record[size - 1] != '}') {
            return null;
        }
        Object[] values = new Object[names.length];
        Cursor cursor = new Cursor(record);
        if (!readObject(cursor, values) || cursor.at != size || values[required] == null) {
            return null;
        }
        if (cursor.hasOtherThanAscii && !isUtf8(record)) {
            return null;
        }
        return new GenericInternalRow(values);
    }

    private boolean readObject(Cursor cursor, Object[] values) {
        long seen = 0;
        int expected = 0;
        cursor.at = 1;
        cursor.skipSpace();
        while (true) {
            if (cursor.next() != '"') {
                return false;
            }
            int start = cursor.at;
            int close = cursor.skipPlainText();
            if (close < 0 || !cursor.skipColon()) {
                return false;
            }
            int field = find(cursor.bytes, start, close, expected);
            if (field < 0) {
                if (!cursor.skipValue(0)) {
                    return false;
                }
            } else {
                // from_json would take one of the two
                if ((seen & (1L << field)) != 0) {
                    return false;
                }
                seen |= 1L << field;
                expected = field + 1;
                if (cursor.peek() == 'n') {
                    if (!cursor.skipWord("null")) {
                        return false;
                    }
                } else {
                    Object value = readValue(cursor, kinds[field]);
                    if (value == null) {
                        return false;
                    }
                    values[field] = value;
                }
            }
            cursor.skipSpace();
            int end = cursor.next();
            if (end == '}') {
                return true;
            }
            if (end != ',') {
                return false;
            }
            cursor.skipSpace();
        }
    }

    private int find(byte[] bytes, int start, int end, int expected) {
        if (expected < names.length && isName(expected, bytes, start, end)) {
            return expected;
        }
        for (int field = 0; field < names.length; field++) {
            if (isName(field, bytes, start, end)) {
                return field;
            }
        }
        return -1;
    }

    private boolean isName(int field, byte[] bytes, int start, int end) {
        byte[] name = names[field];
        return name.length == end - start && Arrays.equals(name, 0, name.length, bytes, start, end);
    }

    /** A value of Spark's internal type, or null if that is uncertain. */
    private Object readValue(Cursor cursor, int kind) {
        switch (kind) {
            case STRING:
                return cursor.readText();
            case BOOLEAN:
                if (cursor.peek() == 't') {
                    return cursor.skipWord("true") ? Boolean.TRUE : null;
                }
                return cursor.skipWord("false") ? Boolean.FALSE : null;
            case DOUBLE:
                return cursor.readDouble();
            case TIMESTAMP:
                return readTime(cursor);
            default:
                return readInteger(cursor, kind);
        }
    }

    private static Object readInteger(Cursor cursor, int kind) {
        int start = cursor.at;
        boolean isNegative = cursor.peek() == '-';
        if (isNegative) {
            cursor.at++;
        }
        int digits = cursor.at;
        long number = 0;
        for (int digit = cursor.digit(); digit >= 0; digit = cursor.digit()) {
            number = number * 10 + digit;
            cursor.at++;
        }
        int count = cursor.at - digits;
        if (count == 0 || count > 19 || (count > 1 && cursor.bytes[digits] == '0')) {
            return null;
        }
        if (count == 19) {
            try {
                number = Long.parseLong(cursor.ascii(start));
            } catch (NumberFormatException e) {
                return null;
            }
        } else if (isNegative) {
            number = -number;
        }
        switch (kind) {
            case TINYINT:
                return number == (byte) number ? Byte.valueOf((byte) number) : null;
            case SMALLINT:
                return number == (short) number ? Short.valueOf((short) number) : null;
            case INT:
                return number == (int) number ? Integer.valueOf((int) number) : null;
            default:
                return Long.valueOf(number);
        }
    }

    /** Microseconds since 1970 of a time such as 2025-09-04T07:00:00.123Z, with or without fraction and zone. */
    private Object readTime(Cursor cursor) {
        if (cursor.next() != '"') {
            return null;
        }
        byte[] bytes = cursor.bytes;
        int start = cursor.at;
        int end = cursor.skipPlainText();
        if (end - start < SECONDS) {
            return null;
        }
        boolean hasOffset = false;
        int zoneStart = end;
        if (bytes[end - 1] == 'Z') {
            zoneStart = end - 1;
        } else if (end - start >= SECONDS + OFFSET && bytes[end - 3] == ':'
                && (bytes[end - OFFSET] == '+' || bytes[end - OFFSET] == '-')) {
            zoneStart = end - OFFSET;
            hasOffset = true;
        }
        int year = number(bytes, start, 4), month = number(bytes, start + 5, 2), day = number(bytes, start + 8, 2);
        int hour = number(bytes, start + 11, 2), minute = number(bytes, start + 14, 2);
        int second = number(bytes, start + 17, 2);
        byte separator = bytes[start + 10];
        if (bytes[start + 4] != '-' || bytes[start + 7] != '-' || (separator != 'T' && separator != ' ')
                || bytes[start + 13] != ':' || bytes[start + 16] != ':') {
            return null;
        }
        if (year < 1 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month)
                || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) {
            return null;
        }
        long micros = 0;
        int fraction = zoneStart - start - SECONDS;
        if (fraction != 0) {
            int digits = fraction - 1;
            if (fraction < 0 || bytes[start + SECONDS] != '.' || digits < 1 || digits > 6) {
                return null;
            }
            micros = number(bytes, start + SECONDS + 1, digits);
            if (micros < 0) {
                return null;
            }
            for (int i = digits; i < 6; i++) {
                micros *= 10;
            }
        }
        long seconds = daysSince1970(year, month, day) * 86400L + hour * 3600 + minute * 60 + second;
        if (hasOffset) {
            int hours = number(bytes, end - 5, 2), minutes = number(bytes, end - 2, 2);
            if (hours < 0 || hours > 17 || minutes < 0 || minutes > 59) {
                return null;
            }
            int offset = hours * 3600 + minutes * 60;
            seconds -= bytes[end - OFFSET] == '-' ? -offset : offset;
        } else if (zoneStart == end && !isUtc) {
            seconds = LocalDateTime.ofEpochSecond(seconds, 0, ZoneOffset.UTC).atZone(zone).toEpochSecond();
        }
        return Long.valueOf(seconds * 1000000L + micros);
    }

    /** The number that so many digits are, or -1. */
    private static int number(byte[] bytes, int start, int count) {
        int number = 0;
        for (int i = start; i < start + count; i++) {
            int digit = bytes[i] - '0';
            if (digit < 0 || digit > 9) {
                return -1;
            }
            number = number * 10 + digit;
        }
        return number;
    }

    private static int daysIn(int year, int month) {
        if (month == 2) {
            return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
        }
        return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
    }

    private static long daysSince1970(int year, int month, int day) {
        // months since March, so that February is the last, whatever its length
        int shifted = (month + 9) % 12;
        int years = month < 3 ? year - 1 : year;
        return 365L * years + years / 4 - years / 100 + years / 400 + (153 * shifted + 2) / 5 + day - 1 - 719468;
    }

    private static boolean isUtf8(byte[] bytes) {
        try {
            StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes));
            return true;
        } catch (CharacterCodingException e) {
            return false;
        }
    }

    /** A place in a record; what it reads or skips is strict JSON. */
    private static final class Cursor {

        final byte[] bytes;
        final int end;
        int at;
        boolean hasOtherThanAscii;

        Cursor(byte[] bytes) {
            this.bytes = bytes;
            this.end = bytes.length;
        }

        int peek() {
            return at < end ? (int) bytes[at] : -1;
        }

        int next() {
            return at < end ? (int) bytes[at++] : -1;
        }

        /** The digit here, or -1. */
        int digit() {
            int digit = peek() - '0';
            return digit >= 0 && digit <= 9 ? digit : -1;
        }

        String ascii(int start) {
            return new String(bytes, start, at - start, StandardCharsets.ISO_8859_1);
        }

        void skipSpace() {
            while (at < end) {
                byte b = bytes[at];
                if (b != ' ' && b != '\n' && b != '\r' && b != '\t') {
                    return;
                }
                at++;
            }
        }

        boolean skipColon() {
            skipSpace();
            if (next() != ':') {
                return false;
            }
            skipSpace();
            return true;
        }

        boolean skipWord(String word) {
            for (int i = 0; i < word.length(); i++) {
                if (next() != word.charAt(i)) {
                    return false;
                }
            }
            return true;
        }

        /** After an opening quote: moves behind the closing one and returns its place; -1 with escapes. */
        int skipPlainText() {
            int i = findQuoteOrEscape();
            if (i < 0 || bytes[i] != '"') {
                return -1;
            }
            at = i + 1;
            return i;
        }

        /** The next quote or backslash; -1 if there is none, or a control character before it. */
        private int findQuoteOrEscape() {
            boolean other = false;
            for (int i = at; i < end; i++) {
                byte b = bytes[i];
                if (b == '"' || b == '\\') {
                    hasOtherThanAscii = hasOtherThanAscii || other;
                    return i;
                }
                if (b < ' ') {
                    if (b >= 0) {
                        return -1;
                    }
                    other = true;
                }
            }
            return -1;
        }

        UTF8String readText() {
            if (next() != '"') {
                return null;
            }
            int start = at;
            int found = findQuoteOrEscape();
            if (found < 0) {
                return null;
            }
            if (bytes[found] == '"') {
                at = found + 1;
                return UTF8String.fromBytes(bytes, start, found - start);
            }
            return readEscapedText(start, found);
        }

        /** A text with escapes, whose bytes never become more. */
        private UTF8String readEscapedText(int start, int firstEscape) {
            byte[] text = new byte[end - start];
            int size = firstEscape - start;
            System.arraycopy(bytes, start, text, 0, size);
            at = firstEscape;
            while (bytes[at] == '\\') {
                at++;
                int code = readEscape();
                if (code < 0) {
                    return null;
                }
                size = putUtf8(text, size, code);
                int found = findQuoteOrEscape();
                if (found < 0) {
                    return null;
                }
                System.arraycopy(bytes, at, text, size, found - at);
                size += found - at;
                at = found;
            }
            at++;
            return UTF8String.fromBytes(text, 0, size);
        }

        /** The character after a backslash, or -1. */
        private int readEscape() {
            switch (next()) {
                case '"': return '"';
                case '\\': return '\\';
                case '/': return '/';
                case 'b': return '\b';
                case 'f': return '\f';
                case 'n': return '\n';
                case 'r': return '\r';
                case 't': return '\t';
                case 'u': break;
                default: return -1;
            }
            int unit = readHex();
            if (unit < 0xD800 || unit > 0xDFFF) {
                return unit;
            }
            // half of a pair: the other half must follow
            if (unit > 0xDBFF || next() != '\\' || next() != 'u') {
                return -1;
            }
            int low = readHex();
            return low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00) : -1;
        }

        private int readHex() {
            int unit = 0;
            for (int i = 0; i < 4; i++) {
                int b = next();
                int digit = b >= '0' && b <= '9' ? b - '0'
                    : b >= 'a' && b <= 'f' ? b - 'a' + 10
                    : b >= 'A' && b <= 'F' ? b - 'A' + 10 : -1;
                if (digit < 0) {
                    return -1;
                }
                unit = unit * 16 + digit;
            }
            return unit;
        }

        private static int putUtf8(byte[] text, int size, int code) {
            if (code < 0x80) {
                text[size++] = (byte) code;
            } else if (code < 0x800) {
                text[size++] = (byte) (0xC0 | (code >> 6));
                text[size++] = (byte) (0x80 | (code & 0x3F));
            } else if (code < 0x10000) {
                text[size++] = (byte) (0xE0 | (code >> 12));
                text[size++] = (byte) (0x80 | ((code >> 6) & 0x3F));
                text[size++] = (byte) (0x80 | (code & 0x3F));
            } else {
                text[size++] = (byte) (0xF0 | (code >> 18));
                text[size++] = (byte) (0x80 | ((code >> 12) & 0x3F));
                text[size++] = (byte) (0x80 | ((code >> 6) & 0x3F));
                text[size++] = (byte) (0x80 | (code & 0x3F));
            }
            return size;
        }

        /** Moves behind a number; false if it is none, or too long. */
        private boolean skipNumber() {
            int start = at;
            if (peek() == '-') {
                at++;
            }
            if (peek() == '0') {
                at++;
            } else if (!skipDigits()) {
                return false;
            }
            if (peek() == '.') {
                at++;
                if (!skipDigits()) {
                    return false;
                }
            }
            if (peek() == 'e' || peek() == 'E') {
                at++;
                if (peek() == '+' || peek() == '-') {
                    at++;
                }
                if (!skipDigits()) {
                    return false;
                }
            }
            return at - start <= LONGEST_NUMBER;
        }

        private boolean skipDigits() {
            int start = at;
            while (digit() >= 0) {
                at++;
            }
            return at > start;
        }

        Double readDouble() {
            int start = at;
            if (!skipNumber()) {
                return null;
            }
            double number = toDouble(start);
            // an integer -0 is 0 for Spark
            if (Double.isInfinite(number) || (number == 0 && bytes[start] == '-')) {
                return null;
            }
            return Double.valueOf(number);
        }

        /** Exact if the digits and the power of ten are doubles themselves: one division rounds once. */
        private double toDouble(int start) {
            long digits = 0;
            int count = 0, decimals = 0;
            boolean isDecimal = false;
            for (int i = bytes[start] == '-' ? start + 1 : start; i < at; i++) {
                byte b = bytes[i];
                if (b == '.') {
                    isDecimal = true;
                } else if (b == 'e' || b == 'E' || ++count > 15) {
                    return Double.parseDouble(ascii(start));
                } else {
                    digits = digits * 10 + (b - '0');
                    decimals += isDecimal ? 1 : 0;
                }
            }
            double number = digits / POWERS[decimals];
            return bytes[start] == '-' ? -number : number;
        }

        /** Moves behind any value; false if it is broken, has an odd form, or is deeply nested. */
        boolean skipValue(int depth) {
            switch (peek()) {
                case '"':
                    at++;
                    return skipText();
                case 't':
                    return skipWord("true");
                case 'f':
                    return skipWord("false");
                case 'n':
                    return skipWord("null");
                case '{':
                    return depth < DEEPEST && skipNested(depth, '}');
                case '[':
                    return depth < DEEPEST && skipNested(depth, ']');
                default:
                    return skipNumber();
            }
        }

        private boolean skipText() {
            int found = findQuoteOrEscape();
            while (found >= 0 && bytes[found] == '\\') {
                at = found + 1;
                if (readEscape() < 0) {
                    return false;
                }
                found = findQuoteOrEscape();
            }
            at = found + 1;
            return found >= 0;
        }

        private boolean skipNested(int depth, int close) {
            at++;
            skipSpace();
            if (peek() == close) {
                at++;
                return true;
            }
            while (true) {
                if (close == '}' && (next() != '"' || !skipText() || !skipColon())) {
                    return false;
                }
                if (!skipValue(depth + 1)) {
                    return false;
                }
                skipSpace();
                int b = next();
                if (b == close) {
                    return true;
                }
                if (b != ',') {
                    return false;
                }
                skipSpace();
            }
        }
    }
}
