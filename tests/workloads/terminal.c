/* Runs a command with a terminal as its standard output, so that it does not hold back what it prints; copies that to its own. Hands
 * SIGINT and SIGTERM on, and ends with the command's exit code. */
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static pid_t child;

static void hand_on(int number) { kill(child, number); }

int main(int argc, char **argv)
{
    int screen, terminal, status;
    struct termios settings;
    if (argc < 2 || openpty(&screen, &terminal, 0, 0, 0)) {
        perror("terminal");
        return 125;
    }
    /* Lines end as the command ends them. */
    tcgetattr(terminal, &settings);
    settings.c_oflag &= ~(tcflag_t)OPOST;
    tcsetattr(terminal, TCSANOW, &settings);
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(terminal, 1);
        close(terminal);
        close(screen);
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    close(terminal);
    struct sigaction action = {.sa_handler = hand_on, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, 0);
    sigaction(SIGTERM, &action, 0);
    char buffer[4096];
    ssize_t got;
    /* Reading fails when the last descriptor of the terminal is closed. */
    while ((got = read(screen, buffer, sizeof buffer)) > 0)
        for (ssize_t sent = 0, more; sent < got; sent += more)
            if ((more = write(1, buffer + sent, (size_t)(got - sent))) < 0)
                return 125;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
