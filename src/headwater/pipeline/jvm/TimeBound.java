package headwater;

import java.io.Serializable;

/**
 * A time that a query compares others with, in microseconds. The driver sets it before each batch; tasks get it as it is then. To Spark it is
 * no constant, so that it does not work out beforehand what the comparison says.
 */
public final class TimeBound implements Serializable {
    private static final long serialVersionUID = 1L;

    private final String about;
    private long micros;

    public TimeBound(String about) {
        this.about = about;
    }

    public void set(long micros) {
        this.micros = micros;
    }

    /** Whether a time is before it. */
    public boolean follows(long other) {
        return other < micros;
    }

    /** What it is, whatever it is asked about: a query that runs on while it is set says so with which one it has worked. */
    public long reached(long other) {
        return micros;
    }

    /** Stands in Spark's plans, by whose text a view is known again. */
    public String toString() {
        return about;
    }
}
