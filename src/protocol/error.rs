//! Kafka's error codes: the crate's list, and the conversions that handlers need.

pub use kafka_protocol::error::ResponseError as ErrorCode;

/// The code of "no error".
pub const NONE: i16 = 0;

/// The wire code of an outcome.
pub trait ToCode {
    /// 0 for success, Kafka's number otherwise.
    fn to_code(&self) -> i16;
}

impl ToCode for ErrorCode {
    fn to_code(&self) -> i16 {
        self.code()
    }
}

impl<E: ToCode> ToCode for Option<E> {
    fn to_code(&self) -> i16 {
        self.as_ref().map_or(NONE, ToCode::to_code)
    }
}

impl<T, E: ToCode> ToCode for Result<T, E> {
    fn to_code(&self) -> i16 {
        self.as_ref().err().map_or(NONE, ToCode::to_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_have_kafkas_numbers() {
        assert_eq!(Ok::<(), ErrorCode>(()).to_code(), 0);
        assert_eq!(Err::<(), _>(ErrorCode::InvalidRecord).to_code(), 87);
        assert_eq!(None::<ErrorCode>.to_code(), 0);
        assert_eq!(Some(ErrorCode::CorruptMessage).to_code(), 2);
    }
}
