"""DescribeUserScramCredentials (API key 50). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class UserName(Struct):
    name: String = wire(0, 0)


@struct
class DescribeUserScramCredentialsRequest(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    users: list[UserName] | None = wire(0, 0)


@struct
class CredentialInfo(Struct):
    mechanism: Int8 = wire(0, 0)
    iterations: Int32 = wire(0, 0)


@struct
class DescribeUserScramCredentialsResult(Struct):
    user: String = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0)
    credential_infos: list[CredentialInfo] = wire(0, 0)


@struct
class DescribeUserScramCredentialsResponse(Message):
    VERSIONS = (0, 0)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 0)
    error_code: Int16 = wire(0, 0)
    error_message: String | None = wire(0, 0)
    results: list[DescribeUserScramCredentialsResult] = wire(0, 0)
