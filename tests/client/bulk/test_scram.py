"""SCRAM, by the examples of its RFCs."""

import pytest

from headwater.client.bulk.scram import ScramClient
from headwater.errors import MachineError

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)


def talk():
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_example_of_rfc_7677():
    said = talk()
    assert said.first == b"n,,n=user,r=" + NONCE.encode()
    assert said.final(FIRST) == FINAL
    said.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_server_that_does_not_know_the_password_is_found_out():
    said = talk()
    said.final(FIRST)
    with pytest.raises(MachineError, match="does not know it"):
        said.check(b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_an_answer_to_another_client_is_refused():
    with pytest.raises(MachineError, match="another client's"):
        talk().final(FIRST.replace(b"rOpr", b"rOpx"))


def test_a_name_with_the_signs_of_the_protocol_is_written_in_their_stead():
    assert ScramClient("SCRAM-SHA-512", "a=b,c", "x", "n").first == b"n,,n=a=3Db=2Cc,r=n"
