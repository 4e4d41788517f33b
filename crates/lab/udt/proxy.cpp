// SPDX-License-Identifier: Apache-2.0
// TCP connections over UDT tunnels, as in "UDT proxying": a proxy at each end of a path
// opens tunnels at its start and sends the bytes of all connections over them, with the number
// of the connection before each piece. The UDT is that of its authors, with its own settings.
//
//     proxy near PORT FAR-ADDRESS FAR-PORT TUNNELS    accepts TCP at PORT
//     proxy far PORT SERVER-ADDRESS SERVER-PORT       accepts tunnels at PORT
//
// Prints "ready" once it accepts connections. A piece is the number of the connection and the
// bytes of the piece, 32 bits each in network byte order, and the bytes; none are its end.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <udt/udt.h>

namespace {

using Bytes = std::vector<char>;

constexpr size_t kPieceBytes = 64 << 10;

[[noreturn]] void Fail(const std::string &what) {
	std::fprintf(stderr, "udt-proxy: %s\n", what.c_str());
	std::exit(1);
}

sockaddr_in Address(const char *ip, const char *port) {
	sockaddr_in address = {};
	address.sin_family = AF_INET;
	address.sin_port = htons(static_cast<uint16_t>(std::atoi(port)));
	if (inet_pton(AF_INET, ip, &address.sin_addr) != 1)
		Fail(std::string("no IPv4 address: ") + ip);
	return address;
}

const sockaddr *Generic(const sockaddr_in &address) {
	return reinterpret_cast<const sockaddr *>(&address);
}

// A TCP connection, and the pieces for it that have arrived by its tunnel.
class Connection {
 public:
	explicit Connection(int fd) : fd_(fd) {
		int on = 1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	}
	~Connection() { close(fd_); }

	int fd() const { return fd_; }

	void Push(Bytes piece) {
		std::lock_guard<std::mutex> lock(mutex_);
		pieces_.push_back(std::move(piece));
		changed_.notify_one();
	}

	// Writes what arrives until its end; goes on without a receiver.
	void Write() {
		for (;;) {
			Bytes piece = Pop();
			if (piece.empty())
				break;
			size_t sent = 0;
			while (sent < piece.size()) {
				ssize_t count = send(fd_, &piece[sent], piece.size() - sent, MSG_NOSIGNAL);
				if (count <= 0)
					break;
				sent += static_cast<size_t>(count);
			}
		}
		shutdown(fd_, SHUT_WR);
	}

 private:
	Bytes Pop() {
		std::unique_lock<std::mutex> lock(mutex_);
		changed_.wait(lock, [this] { return !pieces_.empty(); });
		Bytes piece = std::move(pieces_.front());
		pieces_.pop_front();
		return piece;
	}

	int fd_;
	std::mutex mutex_;
	std::condition_variable changed_;
	std::deque<Bytes> pieces_;
};

// A UDT connection, and the TCP connections that it carries.
class Tunnel {
 public:
	explicit Tunnel(UDTSOCKET socket) : socket_(socket) {}

	// Carries a connection until both of its directions have ended.
	void Carry(uint32_t number, const std::shared_ptr<Connection> &connection) {
		{
			std::lock_guard<std::mutex> lock(mutex_);
			connections_[number] = connection;
		}
		std::thread writer([connection] { connection->Write(); });
		std::vector<char> buffer(kPieceBytes);
		for (;;) {
			ssize_t count = recv(connection->fd(), buffer.data(), buffer.size(), 0);
			Send(number, buffer.data(), count > 0 ? static_cast<uint32_t>(count) : 0);
			if (count <= 0)
				break;
		}
		writer.join();
		std::lock_guard<std::mutex> lock(mutex_);
		connections_.erase(number);
	}

	// Passes on what arrives; `begin` carries connections with numbers that are new.
	template <typename Begin>
	void Receive(Begin begin) {
		uint32_t head[2];
		while (ReceiveAll(reinterpret_cast<char *>(head), sizeof(head))) {
			uint32_t number = ntohl(head[0]), bytes = ntohl(head[1]);
			if (bytes > kPieceBytes)
				Fail("the other end sends no pieces");
			Bytes piece(bytes);
			if (bytes > 0 && !ReceiveAll(piece.data(), bytes))
				return;
			std::shared_ptr<Connection> connection = Find(number);
			if (!connection)
				connection = begin(number);
			if (connection)
				connection->Push(std::move(piece));
		}
	}

	void Add(uint32_t number, const std::shared_ptr<Connection> &connection) {
		std::lock_guard<std::mutex> lock(mutex_);
		connections_[number] = connection;
	}

 private:
	std::shared_ptr<Connection> Find(uint32_t number) {
		std::lock_guard<std::mutex> lock(mutex_);
		auto found = connections_.find(number);
		return found == connections_.end() ? nullptr : found->second;
	}

	void Send(uint32_t number, const char *bytes, uint32_t count) {
		std::lock_guard<std::mutex> lock(sending_);
		uint32_t head[2] = {htonl(number), htonl(count)};
		SendAll(reinterpret_cast<const char *>(head), sizeof(head));
		SendAll(bytes, count);
	}

	void SendAll(const char *bytes, size_t count) {
		while (count > 0) {
			int sent = UDT::send(socket_, bytes, static_cast<int>(count), 0);
			if (sent == UDT::ERROR)
				Fail(UDT::getlasterror().getErrorMessage());
			bytes += sent;
			count -= static_cast<size_t>(sent);
		}
	}

	bool ReceiveAll(char *bytes, size_t count) {
		while (count > 0) {
			int received = UDT::recv(socket_, bytes, static_cast<int>(count), 0);
			if (received == UDT::ERROR)
				return false;
			bytes += received;
			count -= static_cast<size_t>(received);
		}
		return true;
	}

	UDTSOCKET socket_;
	std::mutex mutex_, sending_;
	std::map<uint32_t, std::shared_ptr<Connection>> connections_;
};

void Ready() {
	std::puts("ready");
	std::fflush(stdout);
}

UDTSOCKET NewSocket() {
	UDTSOCKET socket = UDT::socket(AF_INET, SOCK_STREAM, 0);
	if (socket == UDT::INVALID_SOCK)
		Fail(UDT::getlasterror().getErrorMessage());
	return socket;
}

void Near(const char *port, const sockaddr_in &far, int count) {
	std::vector<std::unique_ptr<Tunnel>> tunnels;
	for (int number = 0; number < count; number++) {
		UDTSOCKET socket = NewSocket();
		if (UDT::connect(socket, Generic(far), sizeof(far)) == UDT::ERROR)
			Fail(UDT::getlasterror().getErrorMessage());
		tunnels.push_back(std::make_unique<Tunnel>(socket));
		Tunnel *tunnel = tunnels.back().get();
		auto unknown = [](uint32_t) { return std::shared_ptr<Connection>(); };
		std::thread([tunnel, unknown] { tunnel->Receive(unknown); }).detach();
	}
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	sockaddr_in own = Address("0.0.0.0", port);
	if (bind(listener, Generic(own), sizeof(own)) || listen(listener, 1024))
		Fail("could not listen");
	Ready();
	for (uint32_t number = 1;; number++) {
		int fd = accept(listener, nullptr, nullptr);
		if (fd < 0)
			Fail("could not accept");
		Tunnel *tunnel = tunnels[number % tunnels.size()].get();
		auto connection = std::make_shared<Connection>(fd);
		std::thread([=] { tunnel->Carry(number, connection); }).detach();
	}
}

std::shared_ptr<Connection> ToServer(Tunnel *tunnel, const sockaddr_in &server, uint32_t number) {
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, Generic(server), sizeof(server)))
		Fail("could not connect to the server");
	auto connection = std::make_shared<Connection>(fd);
	tunnel->Add(number, connection);
	std::thread([=] { tunnel->Carry(number, connection); }).detach();
	return connection;
}

void Far(const char *port, const sockaddr_in &server) {
	UDTSOCKET listener = NewSocket();
	sockaddr_in own = Address("0.0.0.0", port);
	if (UDT::bind(listener, Generic(own), sizeof(own)) == UDT::ERROR ||
	    UDT::listen(listener, 64) == UDT::ERROR)
		Fail(UDT::getlasterror().getErrorMessage());
	Ready();
	for (;;) {
		sockaddr_storage from;
		int bytes = sizeof(from);
		UDTSOCKET socket = UDT::accept(listener, reinterpret_cast<sockaddr *>(&from), &bytes);
		if (socket == UDT::INVALID_SOCK)
			Fail(UDT::getlasterror().getErrorMessage());
		std::thread([socket, server] {
			Tunnel *tunnel = new Tunnel(socket);
			tunnel->Receive([=](uint32_t number) { return ToServer(tunnel, server, number); });
		}).detach();
	}
}

}  // namespace

int main(int count, char **words) {
	UDT::startup();
	if (count == 6 && !std::strcmp(words[1], "near"))
		Near(words[2], Address(words[3], words[4]), std::atoi(words[5]));
	else if (count == 5 && !std::strcmp(words[1], "far"))
		Far(words[2], Address(words[3], words[4]));
	Fail("near PORT FAR-ADDRESS FAR-PORT TUNNELS, or far PORT SERVER-ADDRESS SERVER-PORT");
}
