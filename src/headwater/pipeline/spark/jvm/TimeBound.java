package headwater;

import java.io.Serializable;

import org.apache.spark.TaskContext;

/**
 * A time that a query compares others with, in microseconds. The driver sets it before each batch; tasks get it as it is then. To Spark it is
 * no constant, so that it does not work out beforehand what the comparison says.
 *
 * A query that runs on while it is set may send out its next batch just before or just after that. So there it is set together with the
 * batch from which on it holds, and tasks, which know their batch, choose.
 */
public final class TimeBound implements Serializable {
    private static final long serialVersionUID = 1L;

    private final String about;
    /** What holds, what holds later, and the first batch of that. One array, so that a task never gets parts of two settings. */
    private volatile long[] bounds = {0L, 0L, Long.MAX_VALUE};
    private transient long[] asked;
    private transient long micros;

    public TimeBound(String about) {
        this.about = about;
    }

    public void set(long micros) {
        bounds = new long[] {micros, micros, Long.MAX_VALUE};
    }

    /** From a batch on it is another one. */
    public void setFrom(long micros, long later, long batch) {
        bounds = new long[] {micros, later, batch};
    }

    /** Whether a time is before it. */
    public boolean follows(long other) {
        return other < current();
    }

    /** What it is, whatever it is asked about: a query that runs on while it is set says so with which one it has worked. */
    public long reached(long other) {
        return current();
    }

    private long current() {
        long[] found = bounds;
        if (found != asked) {
            micros = found[2] <= batch() ? found[1] : found[0];
            asked = found;
        }
        return micros;
    }

    /** The batch of the task that asks; -1 where there is none. */
    private static long batch() {
        TaskContext task = TaskContext.get();
        String number = task == null ? null : task.getLocalProperty("streaming.sql.batchId");
        return number == null ? -1L : Long.parseLong(number);
    }

    /** Its text in Spark's plans, by which a view is recognized. */
    public String toString() {
        return about;
    }
}
