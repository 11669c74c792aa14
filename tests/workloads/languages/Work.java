import java.io.BufferedReader;
import java.io.InputStreamReader;

/** For each line on its input: calls and objects ten times, a thread, and a collection of garbage. */
public class Work {
    record Thing(int number) {}

    static int called(int number) {
        return new Thing(number).number();
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        while (input.readLine() != null) {
            for (int number = 0; number < 10; number++) {
                called(number);
            }
            var thread = new Thread(() -> called(1), "a-thread");
            thread.start();
            thread.join();
            System.gc();
            System.out.println("done");
        }
        System.exit(7);
    }
}
