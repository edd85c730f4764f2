package headwater;

import java.io.Serializable;
import java.util.HashMap;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * The records that a query leaves out, by where they are in the log. The driver sets them before a batch runs; tasks get them as they are then.
 * In nearly every batch there are none.
 */
public final class Skips implements Serializable {
    private static final long serialVersionUID = 1L;

    /** By topic and partition the ranges of offsets that are left out, in order: first, end, first, end. Never changed, only replaced. */
    private volatile HashMap ranges = new HashMap();

    /** One range a line: topic, partition, first offset, offset after the last one, with tabs between; in order within a partition. */
    public void set(String lines) {
        HashMap made = new HashMap();
        String[] each = lines.isEmpty() ? new String[0] : lines.split("\n");
        for (int n = 0; n < each.length; n++) {
            String[] parts = each[n].split("\t");
            String place = parts[0] + "\t" + parts[1];
            long[] before = (long[]) made.get(place);
            long[] after = new long[before == null ? 2 : before.length + 2];
            if (before != null) {
                System.arraycopy(before, 0, after, 0, before.length);
            }
            after[after.length - 2] = Long.parseLong(parts[2]);
            after[after.length - 1] = Long.parseLong(parts[3]);
            made.put(place, after);
        }
        ranges = made;
    }

    /** Whether a record is taken. */
    public boolean takes(UTF8String topic, int partition, long offset) {
        HashMap found = ranges;
        if (found.isEmpty()) {
            return true;
        }
        long[] bounds = (long[]) found.get(topic + "\t" + partition);
        if (bounds == null) {
            return true;
        }
        int low = 0;
        int high = bounds.length / 2;
        while (low < high) {
            int middle = (low + high) / 2;
            if (bounds[2 * middle + 1] <= offset) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return 2 * low >= bounds.length || offset < bounds[2 * low];
    }

    /** Is part of Spark's plans, by whose text a view is recognised. */
    public String toString() {
        return "skips";
    }
}
