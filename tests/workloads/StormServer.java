// Answers each POST with its path and the body turned round. Says "ready PORT"; ends at SIGTERM.
import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public class StormServer {
    public static void main(String[] arguments) throws Exception {
        // A client that a debugger has held up is no idle one.
        System.setProperty("sun.net.httpserver.idleInterval", "3600");
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            ByteArrayOutputStream answer = new ByteArrayOutputStream();
            answer.write(exchange.getRequestURI().getPath().getBytes());
            for (int at = body.length - 1; at >= 0; at--)
                answer.write(body[at]);
            exchange.sendResponseHeaders(200, answer.size());
            answer.writeTo(exchange.getResponseBody());
            exchange.close();
        });
        server.start();
        System.out.println("ready " + server.getAddress().getPort());
    }
}
