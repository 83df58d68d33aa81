// The daemon as an operator meets it: how it starts, what it refuses, how it stops.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using ::testing::HasSubstr;
using testing::ExpectDone;
using testing::ExpectRefused;
using testing::kTales;
using testing::Outcome;
using testing::Program;
using testing::RunProgram;
using testing::SourcePath;

// A TCP socket of this machine.
class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Socket() { ::close(fd_); }
  // Port 0: any. Returns the port.
  uint16_t Listen() {
    sockaddr_in address = Address(0);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  bool Connect(uint16_t port) {
    sockaddr_in address = Address(port);
    return ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  void Write(const std::string& text) { EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size())); }
  // At least one byte, or "" at the end.
  std::string Read() {
    char buffer[65536];
    const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), 0);
    return std::string(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
  std::string ReadAll() {
    std::string all;
    for (std::string some; !(some = Read()).empty();) all += some;
    return all;
  }

 private:
  static sockaddr_in Address(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  const int fd_;
};

class ServeCommand : public ::testing::Test {
 protected:
  std::vector<std::string> Arguments(const std::string& listen, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"serve", "-m", SourcePath(kTales), "--memory", "16MiB", "--context", "1024",
                                          "--clients", "2", "--store-dir", folder_.path(), "--listen", listen};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static uint16_t FreePort() { return Socket().Listen(); }
  static void Ask(Socket& socket, uint16_t port, const std::string& request) {
    for (int i = 0; i < 1000 && !socket.Connect(port); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    socket.Write(request);
  }
  static std::string Completion(int tokens) {
    const std::string body =
        R"({"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": )" + std::to_string(tokens) + "}";
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  ScratchFolder folder_;
};

TEST_F(ServeCommand, AnswersAndStopsWhenAsked) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--alias", "fairy"}));
  Socket models;
  Ask(models, port, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(models.ReadAll(), HasSubstr("\"id\":\"fairy\""));
  // What runs is given the time to end.
  Socket stream;
  Ask(stream, port, Completion(60));
  std::string answer = stream.Read();
  program.Signal(SIGTERM);
  answer += stream.ReadAll();
  EXPECT_THAT(answer, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]"));
  const Outcome outcome = program.Wait();
  ExpectDone(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("listening on http://127.0.0.1:" + std::to_string(port)));
}

TEST_F(ServeCommand, WhatTakesTooLongIsToldOfTheStop) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--grace", "0"}));
  Socket stream;
  Ask(stream, port, Completion(900));
  std::string answer = stream.Read();
  program.Signal(SIGTERM);
  answer += stream.ReadAll();
  EXPECT_THAT(answer, HasSubstr("the server is stopping"));
  ExpectDone(program.Wait());
}

TEST_F(ServeCommand, RefusesWhatItCannotListenOn) {
  for (const std::string listen : {"8080", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:80x"}) {
    ExpectRefused(RunProgram(Arguments(listen)), {"--listen", listen, "HOST:PORT"});
  }
  ExpectRefused(RunProgram(Arguments("no.such.host:80", {"--without-keys"})), {"no.such.host"});
  Socket taken;
  const std::string listen = "127.0.0.1:" + std::to_string(taken.Listen());
  ExpectRefused(RunProgram(Arguments(listen)), {"cannot listen", listen});
}

TEST_F(ServeCommand, OthersReachItOnlyWhenToldInSoManyWords) {
  ExpectRefused(RunProgram(Arguments("0.0.0.0:0")), {"--listen", "0.0.0.0:0", "--without-keys"});
}

}  // namespace
}  // namespace elasticmem
