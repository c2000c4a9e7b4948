//! A plain connection that sends typed requests in any version, or any bytes at all.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, Request, StrBytes};

/// One TCP connection to a broker.
pub struct Wire {
    stream: TcpStream,
    last_id: i32,
}

/// A request that was sent and whose answer is still to be read.
pub struct Pending<R> {
    version: i16,
    correlation_id: i32,
    request: std::marker::PhantomData<R>,
}

impl Wire {
    /// Connects to `host:port`.
    pub fn connect(address: &str) -> Wire {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_nodelay(true).expect("no delay");
        stream
            .set_read_timeout(Some(crate::PATIENCE))
            .expect("read timeout");
        Wire { stream, last_id: 0 }
    }

    /// Connects to the broker under test.
    pub fn open() -> Wire {
        Wire::connect(&crate::bootstrap())
    }

    /// `host:port` of the broker.
    pub fn peer(&self) -> String {
        self.stream.peer_addr().expect("a peer").to_string()
    }

    /// Bounds how long a read waits.
    pub fn set_patience(&mut self, patience: Duration) {
        self.stream
            .set_read_timeout(Some(patience))
            .expect("read timeout");
    }

    /// Sends a request and reads its answer.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> R::Response {
        let pending = self.send(version, request);
        self.receive(pending)
    }

    /// Sends a request and reads its answer, unless the connection breaks.
    pub fn try_call<R: Request>(&mut self, version: i16, request: &R) -> io::Result<R::Response> {
        let pending = self.try_send(version, request)?;
        let frame = self.read_frame()?;
        Ok(decode(pending, frame))
    }

    /// Sends a request without reading anything.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Pending<R> {
        self.try_send(version, request).expect("send")
    }

    fn try_send<R: Request>(&mut self, version: i16, request: &R) -> io::Result<Pending<R>> {
        self.last_id += 1;
        let mut body = BytesMut::new();
        request
            .encode(&mut body, version)
            .expect("encode the request");
        self.try_send_body(R::KEY, version, self.last_id, &body)?;
        Ok(Pending {
            version,
            correlation_id: self.last_id,
            request: std::marker::PhantomData,
        })
    }

    /// Reads the next answer, which has to be the one to `pending`.
    pub fn receive<R: Request>(&mut self, pending: Pending<R>) -> R::Response {
        let frame = self.read_frame().expect("an answer");
        decode(pending, frame)
    }

    /// Sends one request whose body is given as bytes, behind a correct header.
    pub fn send_body(&mut self, key: i16, version: i16, correlation_id: i32, body: &[u8]) {
        self.try_send_body(key, version, correlation_id, body)
            .expect("send");
    }

    fn try_send_body(
        &mut self,
        key: i16,
        version: i16,
        correlation_id: i32,
        body: &[u8],
    ) -> io::Result<()> {
        let api = ApiKey::try_from(key).expect("a known API");
        let header = RequestHeader::default()
            .with_request_api_key(key)
            .with_request_api_version(version)
            .with_correlation_id(correlation_id)
            .with_client_id(Some(StrBytes::from_static_str("protocol-tests")));
        let mut frame = BytesMut::new();
        let header_version = api.request_header_version(version);
        header
            .encode(&mut frame, header_version)
            .expect("encode the header");
        frame.extend_from_slice(body);
        self.send_frame(&frame)
    }

    /// Sends a length and these bytes.
    pub fn send_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).expect("a frame below 4 GiB");
        self.stream.write_all(&length.to_be_bytes())?;
        self.stream.write_all(frame)
    }

    /// Sends bytes as they are, with no length in front.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads one length-prefixed answer.
    pub fn read_frame(&mut self) -> io::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame.into())
    }

    /// Waits until a part of an answer has come, without reading it.
    pub fn wait_for_bytes(&self) {
        let came = self.stream.peek(&mut [0]).expect("bytes of an answer");
        assert_eq!(came, 1, "the broker closed the connection");
    }

    /// Whether the broker closes the connection without another answer.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(read) => read == 0,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ),
        }
    }
}

fn decode<R: Request>(pending: Pending<R>, mut frame: Bytes) -> R::Response {
    let key = ApiKey::try_from(R::KEY).expect("a known API");
    let header_version = key.response_header_version(pending.version);
    let header = ResponseHeader::decode(&mut frame, header_version).expect("response header");
    assert_eq!(
        header.correlation_id, pending.correlation_id,
        "answers in request order"
    );
    let response = R::Response::decode(&mut frame, pending.version).expect("response body");
    assert_eq!(
        frame.remaining(),
        0,
        "bytes behind the answer to {key:?} v{}",
        pending.version
    );
    response
}
